"""Methods of `torch.Tensor` that are replaced for the length of a step."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import MethodType
from typing import Any, TypeAlias

import torch

from traincheck.collect.moments.replacements import MISSING, Replacement, is_replaced
from traincheck.collect.trace_writer.emitter import hidden
from traincheck.collect.trace_writer.guard import Fault

# Method, arguments with the tensor first, result
Seen: TypeAlias = Callable[[str, tuple[Any, ...], Any], None]


class _Method:
    """A replacement that is equal to the original.

    Torch looks up the function that it passes to ``__torch_function__`` in the class, and
    subclasses have tables that are indexed by it.

    Attributes:
        replaced: the original.
    """

    def __init__(self, original: Any, function: Callable[..., Any]) -> None:
        functools.update_wrapper(self, original)
        self.replaced, self._function = original, function

    def __get__(self, tensor: Any, cls: type | None = None) -> Any:
        return self if tensor is None else MethodType(self._function, tensor)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._function(*args, **kwargs)

    def __eq__(self, other: object) -> bool:
        return other is self or other == self.replaced

    def __hash__(self) -> int:
        return hash(self.replaced)


class TensorMethods:
    """Calls ``seen`` after calls of some methods, between `install` and `remove`.

    Args:
        names: of the methods.
        seen: is called for results that are plain tensors.
        fault: is given its exceptions.
    """

    def __init__(self, names: tuple[str, ...], seen: Seen, fault: Fault) -> None:
        self._names, self._seen, self._fault = names, seen, fault
        self._layers: list[Replacement] = []
        self._is_on = False

    def install(self) -> None:
        """Replace the methods, but those that an instrument replaces: it calls `around` them."""
        mine = vars(torch.Tensor)
        for name in self._names:
            if not is_replaced(torch.Tensor, name):
                original = getattr(torch.Tensor, name)
                layer = Replacement(self, torch.Tensor, name, mine.get(name, MISSING))
                layer.put_in(_Method(original, self.around(name, original)))
                self._layers.append(layer)
        self._is_on = True

    def remove(self) -> None:
        """Restore them, except those that the program has replaced meanwhile."""
        self._is_on = False
        while self._layers:
            layer = self._layers.pop()
            if not layer.is_covered():
                layer.take_out()

    def around(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        """A method that calls ``seen`` after the original."""
        seen, fault = self._seen, self._fault

        def method(*args: Any, **kwargs: Any) -> Any:
            if not self._is_on:
                return original(*args, **kwargs)
            result = original(*args, **kwargs)
            if type(result) is torch.Tensor:
                try:
                    seen(name, args, result)
                except Exception as error:  # training must go on whatever we got wrong
                    fault(seen, error)
            return result

        return hidden(method)
