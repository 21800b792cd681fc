"""Mask the texts of a program before they enter a trace: no secrets, no data.

Traces are sent to colleagues and kept by CI. A text of the program is written unchanged only if it
is a single short word, such as ``mean`` or ``channels_last``. For other texts, such as data, the
length and a fingerprint are written, so that equal texts can be recognized. A value under a name
that looks like that of a secret is not written. Parts that look like secrets are removed from
messages and paths.
"""

from __future__ import annotations

import io
import itertools
import math
import os
import re
import tokenize
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import xxhash

from traincheck.handlers import give_back
from traincheck.schema.marks import MASK, hidden_text

_MAX_CACHED = 4096  # texts, so that data must not grow the training process
_LONGEST_CACHED = 256
_LEAST_SECRET = 8  # characters of a value in the environment that is searched for in texts
_LEAST_TOKEN = 20  # characters that may be a key without looking like one by its name
_BITS = 3.0  # of entropy a character
_SHOWN_DIGITS = 12  # of a fingerprint

# mean, channels_last, ReLU, float16, cuda:0, NCHW; bij,bjk->bik
_WORD = re.compile(
    r"(?:(?:[A-Z]{0,4}[a-z][A-Za-z_]{0,23}|[A-Z]{1,5})\d{0,2}(?::\d{1,3})?"
    r"|[A-Za-z. ]{1,12}(?:,[A-Za-z. ]{1,12}){0,4}->[A-Za-z. ]{0,12})\Z"
)
_KEY = re.compile(r"\w[\w.\-]{0,119}\Z", re.ASCII)  # model_state_dict, 0.weight
_PARTS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")  # of clientSecret, HF_TOKEN
_ANYWHERE = ("secret", "passw", "apikey", "credential", "privatekey", "accesskey")
_LAST = frozenset({"token", "auth", "authorization", "pwd", "passphrase", "cookie", "jwt"})
_PAIRS = frozenset({("api", "key"), ("account", "key"), ("sas", "key"), ("ssh", "key")})
# Before "token": a token of a text.
_OF_TEXT = frozenset({"pad", "bos", "eos", "unk", "mask", "sep", "cls", "image", "per", "end"})
_DIRECTORIES = frozenset({"PWD", "OLDPWD"})  # of a shell, in the environment
_QUERY_KEYS = frozenset({"key", "sig", "signature", "code"})  # of URLs, beside the names above

_USER = re.compile(r"([A-Za-z][\w+.\-]*://)[^/\s@]+@")
_NAMED = re.compile(r"""([\w\-]+)(["']?\s{0,2}[=:]\s{0,2}["']?)([^\s&;,"'#<>{}\[\]()]+)""")
_BEARER = re.compile(r"\b(Bearer|Basic)\s+[\w.~+/=\-]{6,}", re.IGNORECASE)
_WORDS = re.compile(r"[\w\-]+")
_LAYOUT = frozenset({"NL", "NEWLINE", "INDENT", "DEDENT"})  # kinds of tokens
_GIVES = frozenset({"=", ":", "==", "!="})
_TOKEN = re.compile(rf"[A-Za-z0-9_\-+=]{{{_LEAST_TOKEN},}}")


def is_secret(name: str) -> bool:
    """Whether a name looks like that of a secret: ``password``, ``HF_TOKEN``, ``clientSecret``.

    Names of tokens of a text, such as ``pad_token_id``, do not.
    """
    found = _names.get(name)
    if found is None:
        parts = [part.lower() for part in _PARTS.findall(name)]
        if any(word in "".join(parts) for word in _ANYWHERE):
            found = True
        elif parts and parts[-1] in _LAST:  # hf_token, but not token_type_ids
            found = len(parts) == 1 or parts[-2] not in _OF_TEXT
        else:
            found = not _PAIRS.isdisjoint(itertools.pairwise(parts))
        _remember(_names, name, found)
    return found


def text(value: str) -> str:
    """A text among arguments: a short word unchanged, others as length and fingerprint."""
    found = _texts.get(value)
    if found is None:
        found = value if _WORD.match(value) else known_by(value)
        _remember(_texts, value, found)
    return found


def key(name: str) -> str:
    """A key of a mapping: unchanged if it is an identifier and not a secret."""
    found = _keys.get(name)
    if found is None:
        is_plain = _KEY.match(name) and not _is_token(name)
        is_shown = is_plain and (name.islower() or not is_secret(name))
        found = name if is_shown else known_by(name)
        _remember(_keys, name, found)
    return found


def known_by(value: str) -> str:
    """The length of a text and its fingerprint: ``<text 42 5f0c2ab19e3d>``."""
    digest = xxhash.xxh3_64_hexdigest(value.encode("utf-8", "surrogatepass"))
    return hidden_text(len(value), digest[:_SHOWN_DIGITS])


def hides(name: object, value: object) -> bool:
    """Whether a value must be masked because of its name. Tensors and flags never are."""
    kind = type(value)  # a user's class may lie about ``__class__``
    if kind is bool or type(name) is not str or not is_secret(name):
        return False
    return issubclass(kind, (str, bytes, int, float, list, tuple, dict))


def noted(value: Any, name: object = None) -> Any:
    """The data of a user's mark, without the parts that look like secrets."""
    if hides(name, value):
        return MASK
    if isinstance(value, str):
        return message(value)
    if type(value) is dict:
        return {k: noted(part, k) for k, part in value.items()}
    if type(value) in (list, tuple):
        return [noted(part) for part in value]
    return value


def message(value: str) -> str:
    """A message of the program without the parts that look like secrets."""
    for secret in _environment():
        value = value.replace(secret, MASK)
    value = _USER.sub(rf"\1{MASK}@", value)
    value = _BEARER.sub(rf"\1 {MASK}", value)
    value = _NAMED.sub(_unnamed, value)
    return _TOKEN.sub(lambda found: MASK if _is_token(found[0]) else found[0], value)


def path(value: str) -> str:
    """A path with fingerprints instead of parts that look like secrets. Suffixes stay."""
    value = _USER.sub(rf"\1{MASK}@", value)
    return "/".join(map(_part, value.split("/")))


def command(words: Sequence[str]) -> list[str]:
    """A command line without the values of options that look like secrets."""
    found: list[str] = []
    is_value = False
    for word in words:
        name, equals, value = word.partition("=")
        is_option = name.startswith("-") and (is_secret(name.lstrip("-")) or name == "--key")
        if is_value and not word.startswith("-"):
            found.append(MASK)
        elif is_option and value:
            found.append(f"{name}={MASK}")
        else:
            found.append(message(word))
        is_value = is_option and not equals
    return found


def source(content: bytes) -> bytes:
    """A source file without what looks like a secret, in its texts and comments.

    Code and line numbers stay, so two versions of a file differ as their code does.

    Raises:
        ValueError: it is not Python.
    """
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(content).readline)
        text = io.TextIOWrapper(io.BytesIO(content), encoding).read()
        if message(text) == text and not any(map(is_secret, set(_WORDS.findall(text)))):
            return text.encode()  # fifty times as fast as the tokenizer
        tokens = list(tokenize.generate_tokens(io.StringIO(text).readline))
    except (SyntaxError, tokenize.TokenError) as error:
        give_back(error)
        raise ValueError(str(error)) from error
    rows = text.split("\n")
    for token, shown in reversed(list(_masked(tokens))):
        (first, start), (last, end) = token.start, token.end
        merged = f"{rows[first - 1][:start]}{shown}{rows[last - 1][end:]}"
        rows[first - 1 : last] = [merged, *[""] * (last - first)]
    return "\n".join(rows).encode()


def _masked(tokens: Iterable[tokenize.TokenInfo]) -> Iterator[tuple[tokenize.TokenInfo, str]]:
    """The tokens of a source file that must not be shown, and what is shown instead."""
    name = sign = ""  # the two tokens before
    for token in tokens:
        kind, text = tokenize.tok_name[token.type], token.string
        if kind in _LAYOUT:
            continue
        gives = sign in _GIVES or (sign == "," and name[:1] in "'\"")
        if kind in ("STRING", "NUMBER") and gives and is_secret(name.strip("'\"")):
            yield token, repr(MASK)
        elif kind in ("STRING", "COMMENT", "FSTRING_MIDDLE"):
            shown = message(text)
            if shown != text:
                yield token, shown.replace("\n", " ")
        if text != "]":  # settings["password"] = "..."
            name, sign = sign, text


_names: dict[str, bool] = {}
_texts: dict[str, str] = {}
_keys: dict[str, str] = {}


def _remember(cache: dict[str, Any], value: str, found: object) -> None:
    if len(value) > _LONGEST_CACHED:
        return
    if len(cache) >= _MAX_CACHED:
        cache.clear()
    cache[value] = found


def _unnamed(found: re.Match[str]) -> str:
    name, sign, value = found.groups()
    is_in_url = found.string[max(0, found.start() - 1)] in "?&;" and name.lower() in _QUERY_KEYS
    if value.startswith("//") or not (is_secret(name) or is_in_url):
        return found[0]
    return f"{name}{sign}{MASK}"


def _part(value: str) -> str:
    stem, dot, ending = value.partition(".")
    if stem and (_is_token(stem) or is_secret(stem)):
        return f"{known_by(stem)}{dot}{ending}"
    return value


def _is_token(value: str) -> bool:
    """Whether a long text is too irregular for a name."""
    if len(value) < _LEAST_TOKEN or value.isdigit() or not any(map(str.isalpha, value)):
        return False
    counts = Counter(value)
    entropy = -sum(n / len(value) * math.log2(n / len(value)) for n in counts.values())
    if entropy <= _BITS:
        return False
    kinds = [
        "0" if letter.isdigit() else "A" if letter.isupper() else "a" if letter.islower() else ""
        for letter in value
    ]
    # How often it goes from letters to digits or from small letters to capitals, or back
    switches = sum(a != b for a, b in itertools.pairwise(kinds) if a and b)
    return switches > len(value) / 5


def _environment() -> list[str]:
    """Values of variables whose names look like secrets, the longest first."""
    environ = os.environ.items()
    found = {
        value
        for name, value in environ
        if len(value) >= _LEAST_SECRET and is_secret(name) and name not in _DIRECTORIES
    }
    return sorted(found, key=len, reverse=True)
