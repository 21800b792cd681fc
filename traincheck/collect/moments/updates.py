"""Steps of optimizers, and the moment right before the update, when gradients are as it uses them.

A step may get a closure, as Lightning gives each and LBFGS needs one. Forward and backward then run
within the step, so the moment is after the first call of the closure.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch.optim import Optimizer
from torch.optim import optimizer as optimizers

from traincheck.collect.listeners import Listeners
from traincheck.collect.trace_writer.emitter import hidden
from traincheck.collect.trace_writer.guard import Fault


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


@dataclass(frozen=True, slots=True, eq=False)
class Update:
    """A listener to the steps of all optimizers. Each part is optional, and gets the optimizer.

    Attributes:
        begins: a step begins: whether `before` is called in it.
        before: it updates now: after the first call of its closure, if it has one.
        after: the step has ended.
    """

    begins: Callable[[Optimizer], bool] | None = None
    before: Callable[[Optimizer], None] | None = None
    after: Callable[[Optimizer], None] | None = None


class Updates(Listeners[Update]):
    """The updates of all optimizers, by hooks of torch while somebody listens.

    It has its own key among these, so that the keys of the program's are as without it.

    Attributes:
        fault: is given the exceptions of listeners.
    """

    __slots__ = ("fault",)

    def __init__(self, fault: Fault) -> None:
        super().__init__()
        self.fault = fault

    def add(self, action: Update) -> None:
        super().add(action)
        self._hook()

    def leave(self, action: Update) -> None:
        super().leave(action)
        self._hook()

    def clear(self) -> None:
        super().clear()
        self._hook()

    def _hook(self) -> None:
        """Be called as far as anybody listens."""
        before: Any = optimizers._global_optimizer_pre_hooks
        after: Any = optimizers._global_optimizer_post_hooks
        ends = any(one.after is not None for one in self.all)
        for hooks, call, is_heard in ((before, self._begin, self.all), (after, self._end, ends)):
            if is_heard:
                hooks.setdefault(self, call)
            else:
                hooks.pop(self, None)

    @hidden
    def _begin(self, optimizer: Any, args: Any, kwargs: Any) -> Any:
        changed = None  # arguments to use instead
        for one in self.all:
            try:
                if (one.begins is None or one.begins(optimizer)) and one.before is not None:
                    given, named = changed or (args, kwargs)
                    act = functools.partial(self._tell, one.before, optimizer)
                    changed = before_update(given, named, act) or changed
            except Exception as error:  # training must go on whatever we got wrong
                self.fault(one.begins, error)
        return changed

    @hidden
    def _end(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        for one in self.all:
            if one.after is not None:
                self._tell(one.after, optimizer)

    def _tell(self, action: Callable[[Optimizer], None], optimizer: Optimizer) -> None:
        try:
            action(optimizer)
        except Exception as error:  # training must go on whatever we got wrong
            self.fault(action, error)
