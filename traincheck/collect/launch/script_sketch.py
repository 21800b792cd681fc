"""A sketch of the lines of a script: two scripts with many common lines have similar sketches."""

from __future__ import annotations

from zlib import crc32

from traincheck.handlers import give_back
from traincheck.schema.reading import read_regular

_KEPT = 24  # the smallest hashes, a fair sample of the lines
_MOST_BYTES = 1 << 20
_COMMON = (b"import ", b"from ", b"#")  # beginnings of lines that many scripts share


def script_sketch(path: str) -> str:
    """The sketch of a script, in hex; empty if it cannot be read.

    Order, indentation, comments and imports do not matter.
    """
    if not path:
        return ""
    try:
        text = read_regular(path, _MOST_BYTES)
    except (OSError, ValueError) as error:  # such as `python -c`
        give_back(error)
        return ""
    lines = {line.strip() for line in text.splitlines()}
    telling = [line for line in lines if line and not line.startswith(_COMMON)]
    return "".join(sorted({f"{crc32(line):08x}"[:4] for line in telling})[:_KEPT])
