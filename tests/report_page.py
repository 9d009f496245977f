"""index.html as a parser sees it: its rows, its data, and whatever it would fetch from elsewhere."""

import json
from html.parser import HTMLParser
from pathlib import Path

VOID = {"meta", "input", "img", "br", "link", "hr"}


class Page(HTMLParser):
    """``rows``: cells of the table of runs; ``outside``: addresses that are not in the page; ``unclosed``: tags."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.rows, self.outside, self.unclosed, self.scripts = [], [], [], 0
        self._text, self._table, self._data = "", None, False
        self.feed(path.read_text())
        self.close()

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        if tag not in VOID:
            self.unclosed.append(tag)
        self.scripts += tag == "script"
        self._data = given.get("id") == "data"
        if tag == "table":
            self._table = given.get("id")
        for name in ("src", "href"):
            address = given.get(name) or "#"
            if not address.startswith(("data:", "#", "table.")):
                self.outside.append(address)
        if tag == "tr" and "data-key" in given:
            self.rows.append([])
        self._text = ""

    def handle_data(self, data):
        self._text += data
        if self._data:
            self.data = json.loads(data) if data.strip() else self.data

    def handle_endtag(self, tag):
        assert self.unclosed.pop() == tag
        if tag == "td" and self._table == "runs":
            self.rows[-1].append(self._text)
        self._data = False
