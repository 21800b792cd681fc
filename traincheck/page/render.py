"""One HTML file from templates. Texts of a trace are escaped; scripts get their data as JSON."""

from __future__ import annotations

import base64
import hashlib
import math
from pathlib import Path
from typing import Any

import jinja2
import orjson

from traincheck.schema.files import read_regular
from traincheck.schema.words import printable

_STATIC = Path(__file__).with_name("static")
_SCRIPTS = ("uplot.js", "page.js")
_LONGEST = 1000  # characters of a text
_STYLES = ("uplot.css", "page.css")


def render(context: dict[str, Any], data: dict[str, Any]) -> str:
    """The page.

    Args:
        context: what the templates show, plain objects.
        data: what the scripts draw, plain objects.
    """
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("traincheck.page"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters["printable"] = lambda value: printable(clipped(str(value)))
    environment.filters["norm"] = lambda n: f"{n:.4g}" if math.isfinite(n) else "not finite"
    scripts = [_asset(name) for name in _SCRIPTS]
    styles = "\n".join(_asset(name) for name in _STYLES)
    template = environment.get_template("page.html.j2")
    return template.render(
        **context,
        data=json_text(data),
        scripts=scripts,
        styles=styles,
        policy=_policy(scripts),
    )


def clipped(text: str) -> str:
    """A text of bounded length."""
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


def json_text(data: dict[str, Any]) -> str:
    """JSON that ends no script element and has no invisible character, for any text in it."""
    text = orjson.dumps(data, option=orjson.OPT_SORT_KEYS).decode()
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _asset(name: str) -> str:
    return read_regular(_STATIC / name).decode()


def _policy(scripts: list[str]) -> str:
    """A content security policy: these scripts may run, and nothing may be loaded."""
    hashes = (hashlib.sha256(text.encode()).digest() for text in scripts)
    allowed = " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in hashes)
    return f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data:"
