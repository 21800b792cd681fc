"""Turn arguments and results into JSON values: shapes, dtypes and scalars, never tensor data."""

from __future__ import annotations

import enum
import itertools
import math
import numbers
import operator
import types
from collections.abc import Callable
from typing import Any

import orjson
import torch

from traincheck.collect import masking
from traincheck.collect.templates import WITH_VALUE
from traincheck.collect.tensors.reading import as_plain, is_a, item, real, requires_grad, unseen
from traincheck.handlers import give_back
from traincheck.schema.marks import MASK

MAX_ITEMS = 8  # of a sequence or mapping
MAX_DEPTH = 3
_INT64 = 1 << 63

# Serialized once for each distinct (dtype, shape, requires_grad, device): making the text costs 1.1
# microseconds, a look-up 0.3. A plain dict and a bound method: a subclass with __missing__ is a
# third slower.
_Key = tuple[torch.dtype, torch.Size, bool, torch.device]
_HomeKey = tuple[torch.dtype, torch.Size, bool, bool]
_MAX_CACHED = 4096  # variable shapes must not grow the training process
_cache: dict[_Key, bytes] = {}
_home: dict[_HomeKey, bytes] = {}  # of tensors on the CPU: a flag is hashed faster than a device
_cached = _home.get
_scalars: dict[_Key, bytes] = {}  # their values follow
_scalar_heads: dict[_HomeKey, bytes] = {}  # the same without the brace, of tensors on the CPU
_TENSORS = frozenset({torch.Tensor, torch.nn.Parameter})
_SHOWN = frozenset({*_TENSORS, bool, type(None)})  # whatever their name
# One call into C for all four
_key_of: Callable[[torch.Tensor], _Key] = operator.attrgetter(
    "dtype", "shape", "requires_grad", "device"
)
_home_key_of: Callable[[torch.Tensor], _HomeKey] = operator.attrgetter(
    "dtype", "shape", "requires_grad", "is_cpu"
)


def _serialized(key: _Key, cache: dict[_Key, bytes]) -> bytes:
    found = cache.get(key)
    if found is not None:
        return found
    dtype, shape, requires_grad, device = key
    fields: dict[str, Any] = {
        "dtype": str(dtype).removeprefix("torch."),
        "shape": [int(size) for size in shape],
        "device": str(device),
    }
    if requires_grad:
        fields["requires_grad"] = True
    if len(cache) >= _MAX_CACHED:
        cache.clear()
    found = cache[key] = orjson.dumps(fields)
    return found


def encode(value: Any) -> bytes:
    """`summarize`, serialized, on the hot path."""
    if type(value) in _TENSORS:
        try:
            key = _home_key_of(value)
            return _cached(key) or _found(value, key)
        except (TypeError, RuntimeError) as error:
            give_back(error)  # symbolic sizes, nested layouts: left to the slow path
    elif type(value) is bool or value is None:
        return _SIMPLE[value]
    elif type(value) is float and value - value == 0:  # finite
        return orjson.dumps(value)
    return dumps(summarize(value))


def encode_named(name: str, value: Any) -> bytes:
    """`encode` for a value under a name. It is masked under the name of a secret."""
    if type(value) not in _SHOWN and masking.hides(name, value):
        return _MASKED
    return encode(value)


def _found(tensor: torch.Tensor, home_key: _HomeKey) -> bytes:
    head = _scalar_heads.get(home_key)  # losses come in every step: one call for three
    if head is not None:
        value = item(tensor)
        if type(value) is float and value - value == 0:
            return WITH_VALUE % (head, orjson.dumps(value))
    key = _key_of(tensor)
    if not key[1]:
        if home_key[3]:
            _scalar_heads[home_key] = _serialized(key, _scalars)[:-1]
        return _scalar_text(tensor, key)
    text = _serialized(key, _cache)
    if home_key[3]:
        if len(_home) >= _MAX_CACHED:
            _home.clear()
        _home[home_key] = text
    return text


def _scalar_text(tensor: torch.Tensor, key: _Key) -> bytes:
    plain = _serialized(key, _scalars)
    # To read it would wait for the device; one that consists of others has no memory
    if not (tensor.is_cpu and tensor.data_ptr()):
        return plain
    return WITH_VALUE % (plain[:-1], orjson.dumps(number(item(tensor))))


_MASKED = orjson.dumps(MASK)
_SIMPLE: dict[bool | None, bytes] = {None: b"null", True: b"true", False: b"false"}


def summarize_tensor(tensor: torch.Tensor) -> Any:
    """The summary of a tensor, with its value when it is one number in CPU memory."""
    if type(tensor) in _TENSORS:
        return _summary(tensor)
    with unseen():  # otherwise a user's subclass would see the reads
        plain = as_plain(tensor)
        if plain is tensor:
            return _summary(tensor)
        return _summary(plain, requires_grad=requires_grad(tensor))


def _summary(tensor: torch.Tensor, *, requires_grad: bool | None = None) -> Any:
    try:
        key = _key_of(tensor)
        if requires_grad is not None:
            key = key[0], key[1], requires_grad, key[3]
        if key[1]:
            return orjson.Fragment(_serialized(key, _cache))
        return orjson.Fragment(_scalar_text(tensor, key))
    except (TypeError, RuntimeError, AttributeError) as error:
        give_back(error)  # symbolic sizes, values in a transform
        dtype = str(tensor.dtype).removeprefix("torch.")
        return {"dtype": dtype, "shape": [], "type": dotted(type(tensor))}


def number(value: Any) -> Any:
    """A number in JSON: non-finite floats by name, complex and huge ints as text."""
    if isinstance(value, float):
        return value if math.isfinite(value) else repr(value)
    if isinstance(value, int):
        return value if -_INT64 <= value < _INT64 else str(value)
    return repr(value)


def dumps(value: Any) -> bytes:
    """JSON of any value of a program, also of values that orjson rejects.

    No code of traincheck is called from within orjson, which would replace an exception of a signal
    handler.
    """
    try:
        return orjson.dumps(value)
    except TypeError as error:
        give_back(error)
        return orjson.dumps(_cleaned(value))


def _cleaned(value: Any) -> Any:
    """The value in a form that orjson accepts: UTF-8 text only, and keys that are text."""
    kind = type(value)
    if value is None or kind is float or kind is orjson.Fragment:
        return value
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, (list, tuple)):
        return [_cleaned(item) for item in value]
    if isinstance(value, dict):
        return {_cleaned(str(key)): _cleaned(item) for key, item in value.items()}
    if is_a(value, int):
        return value if kind is bool else number(int.__int__(value))
    if is_a(value, numbers.Integral) and real(value) is not None:  # of numpy
        return number(int(value))
    found = real(value)
    return dotted(kind) if found is None else number(found)


def escaped(text: bytes) -> bytes:
    """Text escaped for a template."""
    return text.replace(b"%", b"%%")


def dotted(cls: Any) -> str:
    """Importable dotted name of a class or function."""
    module = getattr(cls, "__module__", None) or "builtins"
    return f"{module}.{getattr(cls, '__qualname__', type(cls).__qualname__)}"


def _same(value: Any, depth: int = 0) -> Any:
    return value


def _text(value: str, depth: int = 0) -> str:
    return masking.text(value)


def _number(value: Any, depth: int = 0) -> Any:
    return number(value)


def _sequence(value: Any, depth: int = 0) -> Any:
    if depth >= MAX_DEPTH:
        return {"type": dotted(type(value))}
    items = [_item(item, depth + 1) for item in value[:MAX_ITEMS]]
    if len(value) > MAX_ITEMS:
        items.append(f"... {len(value) - MAX_ITEMS} more")
    return items


def _item(item: Any, depth: int) -> Any:
    """One item of several: texts in a list are data, such as sentences or class names."""
    return masking.known_by(item) if type(item) is str else summarize(item, depth)


def _mapping(value: dict[Any, Any], depth: int = 0) -> Any:
    if depth >= MAX_DEPTH:
        return {"type": dotted(type(value))}
    items = itertools.islice(dict.items(value), MAX_ITEMS)
    return {"dict": {_key(key): summarize_named(key, item, depth + 1) for key, item in items}}


def _key(key: Any) -> str:
    return masking.key(str(key)) if type(key) in _PLAIN_KEYS else dotted(type(key))


def _named(value: Any, depth: int = 0) -> Any:
    return {"name": str(value) if isinstance(value, (torch.dtype, torch.device)) else dotted(value)}


def _tensor(value: torch.Tensor, depth: int = 0) -> Any:
    return summarize_tensor(value)


_PLAIN_KEYS = frozenset({str, int, float, bool, type(None)})
_HAVE_NAMES = (
    type,
    types.FunctionType,
    types.MethodType,
    types.BuiltinFunctionType,
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
)
_BY_TYPE: dict[type, Callable[..., Any]] = {
    torch.Tensor: _tensor,
    torch.nn.Parameter: _tensor,
    type(None): _same,
    bool: _same,
    int: _number,
    float: _number,
    complex: _number,
    str: _text,
    list: _sequence,
    tuple: _sequence,
    torch.Size: _sequence,
    dict: _mapping,
    torch.dtype: _named,
    torch.device: _named,
    type: _named,
}


def summarize_named(name: Any, value: Any, depth: int = 0) -> Any:
    """`summarize` for a value under a name. It is masked under the name of a secret."""
    return MASK if masking.hides(name, value) else summarize(value, depth)


def summarize(value: Any, depth: int = 0) -> Any:
    """The JSON form of any value (schema/values.py).

    Calls no method that a user's class could override.
    """
    kind = type(value)
    found = _BY_TYPE.get(kind)
    if found is not None:
        return found(value, depth)
    # By the type: ``isinstance`` would believe a class that lies about ``__class__``
    if issubclass(kind, torch.Tensor):
        return summarize_tensor(value)
    if issubclass(kind, enum.Enum):
        return f"{kind.__name__}.{value._name_}"
    if issubclass(kind, float):  # numpy.float64 is one
        return number(float.__float__(value))
    if issubclass(kind, int):
        return number(int.__int__(value))
    if issubclass(kind, tuple):
        return _sequence(tuple.__getitem__(value, slice(None)), depth)
    if issubclass(kind, dict):
        return _mapping(value, depth)
    if issubclass(kind, _HAVE_NAMES):
        return _named(value)
    return {"type": dotted(kind)}
