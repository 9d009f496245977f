"""What a K/V cache saves, counted and measured: the parts of `python -m fastcache.kv_study`."""
