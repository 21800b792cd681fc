"""Hooks on the modules of one model, only while a step is measured.

Steps between cost nothing. A copy of a model that was made meanwhile has hooks that do nothing.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

import torch

from traincheck.collect.tensors.reading import unseen
from traincheck.collect.trace_writer.recording_state import is_traced
from traincheck.handlers import give_back

_graph_task: Callable[[], int] = getattr(torch._C, "_current_graph_task_id", lambda: -1)

Entered: TypeAlias = Callable[[str, torch.nn.Module, tuple[Any, ...], dict[str, Any]], None]
Left: TypeAlias = Callable[[str, torch.nn.Module, tuple[Any, ...], dict[str, Any], Any], None]


class ModuleHooks:
    """Calls back before and after each call of named modules.

    Args:
        named: name and module.
        entered: called before a call, or None.
        left: called after it.
        fault: counts a failure of ours.
    """

    def __init__(
        self,
        named: Iterable[tuple[str, torch.nn.Module]],
        *,
        entered: Entered | None,
        left: Left,
        fault: Callable[[Exception], None],
    ) -> None:
        self._named = [(name, weakref.ref(module)) for name, module in named]
        self._entered, self._left, self._fault = entered, left, fault
        self._handles: list[Any] = []

    @property
    def is_attached(self) -> bool:
        """Whether the modules are hooked."""
        return bool(self._handles)

    def attach(
        self, only: torch.nn.Module | None = None, *, always: torch.nn.Module | None = None
    ) -> None:
        """Hook the modules. Does nothing if they are hooked.

        Args:
            only: the module whose calls are announced before they begin; None for all.
            always: the module whose calls also count as over when they raise.
        """
        if self._handles:
            return
        for name, ref in self._named:
            module = ref()
            if module is None:
                continue
            if self._entered is not None and only in (None, module):
                before = _Before(name, ref, self._entered, self._fault)
                self._handles.append(module.register_forward_pre_hook(before, with_kwargs=True))
            after = _After(name, ref, self._left, self._fault)
            self._handles.append(
                module.register_forward_hook(after, with_kwargs=True, always_call=module is always)
            )

    def detach(self) -> None:
        """Remove the hooks."""
        while self._handles:
            self._handles.pop().remove()


class _Hook:
    """A hook of one module that does nothing in a copy of it, in compiled code and in backward."""

    def __init__(
        self,
        name: str,
        ref: weakref.ref[torch.nn.Module],
        action: Callable[..., None],
        fault: Callable[[Exception], None],
    ) -> None:
        self._name, self._ref, self._action, self._fault = name, ref, action, fault

    def __deepcopy__(self, memo: Any) -> Any:
        return _nothing

    def __reduce__(self) -> Any:
        return (_of_a_copy, ())

    def run(self, module: torch.nn.Module, *rest: Any) -> None:
        if module is not self._ref() or _graph_task() != -1:
            return
        try:
            with unseen():
                self._action(self._name, module, *rest)
        except Exception as error:  # training must go on whatever we got wrong
            give_back(error)
            self._fault(error)


class _Before(_Hook):
    def __call__(self, module: torch.nn.Module, args: Any, kwargs: Any) -> None:
        if not is_traced():
            self.run(module, args, kwargs)


class _After(_Hook):
    def __call__(self, module: torch.nn.Module, args: Any, kwargs: Any, result: Any) -> None:
        if not is_traced():
            self.run(module, args, kwargs, result)


def _nothing(*_: Any) -> None:
    """The hook of a copy."""


def _of_a_copy() -> Callable[..., None]:
    """The form in which a hook is pickled."""
    return _nothing
