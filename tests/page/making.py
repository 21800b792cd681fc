"""Pages of hand-made traces, and what a reader of their HTML finds."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from traincheck.api import make_engine
from traincheck.page.build import page_of_run
from traincheck.schema.events import Event
from traincheck.schema.findings import Report
from traincheck.store.reader import TraceReader
from traincheck.store.writer import TraceWriter


def written(folder: Path, events: Iterable[Event]) -> Path:
    """A run of these events."""
    with TraceWriter(folder) as writer:
        for event in events:
            writer.emit(event)
    return folder


def page_of_folder(folder: Path) -> tuple[str, Report]:
    """The page of a run, checked by all rules."""
    return page_of_run(make_engine(), TraceReader(folder, may_be_empty=True))


def page_of_events(folder: Path, events: Iterable[Event]) -> tuple[str, Report]:
    """The page of a run of these events."""
    return page_of_folder(written(folder, events))


class Html(HTMLParser):
    """The elements, texts and scripts of a page.

    Attributes:
        tags: names of all elements, with their attributes.
        text: of everything that is shown without JavaScript.
        scripts: attributes and content of each script.
    """

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.scripts: list[tuple[dict[str, str | None], str]] = []
        self._in = ""
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._in = tag

    def handle_endtag(self, tag: str) -> None:
        self._in = ""

    def handle_data(self, data: str) -> None:
        if self._in == "script":
            self.scripts.append((self.tags[-1][1], data))
        elif self._in != "style":
            self.texts.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).split())

    @property
    def data(self) -> dict[str, Any]:
        """What the scripts draw."""
        (text,) = (text for attributes, text in self.scripts if attributes.get("id") == "data")
        found: dict[str, Any] = json.loads(text)
        return found


def codes(drawn: dict[str, Any]) -> list[list[int]]:
    """The cells of a map, row by row."""
    cells, wide = base64.b64decode(drawn["cells"]), drawn["columns"]
    return [list(cells[start : start + wide]) for start in range(0, len(cells), wide)]
