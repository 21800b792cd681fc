"""The moment right before an optimizer updates, when gradients are as it uses them.

A step may get a closure, as Lightning gives each and LBFGS needs one. Forward and backward then run
within the step, so the moment is after the first call of the closure.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.optim import optimizer as optimizers

from traincheck.collect.trace_writer.emitter import hidden


def before_update(
    args: tuple[Any, ...], kwargs: Mapping[str, Any], action: Callable[[], None]
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """Call ``action`` right before an optimizer updates: after its closure, if it has one.

    Args:
        args: of the step, from the optimizer on, as a pre-hook of the optimizer gets them.
        kwargs: likewise.
        action: called once.

    Returns:
        Arguments to use instead, with a closure that calls ``action`` after its first call; None if
        there is no closure. If an optimizer calls its closure several times, as LBFGS does, only
        the first call is before the update. If it never calls it, ``action`` is not called.
    """
    closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
    if not callable(closure):
        action()
        return None
    is_done = False

    @functools.wraps(closure, updated=())
    def evaluated(*given: Any, **named: Any) -> Any:
        nonlocal is_done
        result = closure(*given, **named)
        if not is_done:
            is_done = True
            action()
        return result

    evaluated = hidden(evaluated)
    if "closure" in kwargs:
        return args, {**kwargs, "closure": evaluated}
    return (args[0], evaluated, *args[2:]), dict(kwargs)


class UpdateHook:
    """Calls ``action`` before each update of any optimizer, until it is removed.

    It has its own key among torch's hooks, so that the keys of the program's are as without it.

    Args:
        action: gets the optimizer.
        fault: gets what failed, and the error.
        is_due: gets the optimizer when its step begins: whether ``action`` is called in it.
    """

    def __init__(
        self,
        action: Callable[[torch.optim.Optimizer], None],
        fault: Callable[[Any, BaseException], None],
        is_due: Callable[[torch.optim.Optimizer], bool] = lambda _: True,
    ) -> None:
        def act(optimizer: Any) -> None:
            try:
                action(optimizer)
            except Exception as error:  # training must go on whatever we got wrong
                fault(action, error)

        def before_step(optimizer: Any, args: Any, kwargs: Any) -> Any:
            try:
                if not is_due(optimizer):
                    return None
                return before_update(args, kwargs, lambda: act(optimizer))
            except Exception as error:  # training must go on whatever we got wrong
                fault(action, error)
                return None

        hooks: Any = optimizers._global_optimizer_pre_hooks
        self._hooks = hooks
        self._hooks[self] = hidden(before_step)

    def remove(self) -> None:
        """Call it no more."""
        self._hooks.pop(self, None)
