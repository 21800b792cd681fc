"""Methods of `torch.Tensor` that are replaced for the length of a step."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from types import MethodType
from typing import Any, TypeAlias

import torch

from traincheck.collect.trace_writer.emitter import hidden

_MISSING = object()
# Method, arguments with the tensor first, result
Seen: TypeAlias = Callable[[str, tuple[Any, ...], Any], None]
Fault: TypeAlias = Callable[[Any, BaseException], None]


class _Method:
    """A replacement that is equal to the original.

    Torch looks up the function that it passes to ``__torch_function__`` in the class, and
    subclasses have tables that are indexed by it.
    """

    def __init__(self, original: Any, function: Callable[..., Any]) -> None:
        functools.update_wrapper(self, original)
        self._original, self._function = original, function

    def __get__(self, tensor: Any, cls: type | None = None) -> Any:
        return self if tensor is None else MethodType(self._function, tensor)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._function(*args, **kwargs)

    def __eq__(self, other: object) -> bool:
        return other is self or other == self._original

    def __hash__(self) -> int:
        return hash(self._original)


class TensorMethods:
    """Calls ``seen`` after calls of some methods, between `install` and `remove`.

    Args:
        names: of the methods.
        seen: is called for results that are plain tensors.
        fault: is given its exceptions.
    """

    def __init__(self, names: tuple[str, ...], seen: Seen, fault: Fault) -> None:
        self._names, self._seen, self._fault = names, seen, fault
        self._stored: dict[str, tuple[Any, _Method]] = {}

    @property
    def is_installed(self) -> bool:
        return bool(self._stored)

    def install(self) -> None:
        """Replace the methods."""
        mine: Mapping[str, Any] = vars(torch.Tensor)
        for name in self._names:
            original = getattr(torch.Tensor, name)
            method = _Method(original, _wrapped(name, original, self._seen, self._fault))
            self._stored[name] = mine.get(name, _MISSING), method
            setattr(torch.Tensor, name, method)

    def remove(self) -> None:
        """Restore them, except those that the program has replaced meanwhile."""
        while self._stored:
            name, (stored, method) = self._stored.popitem()
            if vars(torch.Tensor).get(name) is not method:
                continue
            if stored is _MISSING:
                delattr(torch.Tensor, name)
            else:
                setattr(torch.Tensor, name, stored)


def _wrapped(
    name: str, original: Callable[..., Any], seen: Seen, fault: Fault
) -> Callable[..., Any]:
    def method(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        if type(result) is torch.Tensor:
            try:
                seen(name, args, result)
            except Exception as error:  # training must go on whatever we got wrong
                fault(seen, error)
        return result

    return hidden(method)
