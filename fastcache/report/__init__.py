"""`python -m fastcache.report`: what finished runs come to, as tables, figures and one page. Imports no torch."""
