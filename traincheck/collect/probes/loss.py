"""The first backward pass of a copy that goes on as the program: its loss is read, and it ends."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch.optim import optimizer as optimizers
from torch.utils.data import dataloader
from xxhash import xxh3_64_hexdigest

from traincheck.collect.probes.fork import Child
from traincheck.collect.tensors.reading import unseen

_HOOK = -2  # key among the hooks of optimizers, which torch counts from 0


@dataclass(frozen=True, slots=True)
class Root:
    """The beginning of a backward pass.

    Attributes:
        tensors: the roots, usually one scalar.
        weights: what each is multiplied with; None for 1.
        run: makes the backward pass.
    """

    tensors: tuple[torch.Tensor, ...]
    weights: tuple[torch.Tensor | None, ...]
    run: Callable[[], None]

    @property
    def value(self) -> float:
        """The number whose gradient is computed."""
        total = 0.0
        for tensor, weight in zip(self.tensors, self.weights):
            values = tensor.detach().double()
            total += float((values if weight is None else values * weight.detach()).sum())
        return total

    @property
    def digest(self) -> str:
        """Equal for equal bits of the roots."""
        parts = [tensor.detach().contiguous().view(-1) for tensor in self.tensors]
        return xxh3_64_hexdigest(
            b"".join(part.view(torch.uint8).numpy().tobytes() for part in parts)
        )


def watch(child: Child, read: Callable[[Root], Mapping[str, Any]]) -> None:
    """Let this copy end at its first backward pass, or at what would reach further than that."""
    original = torch.autograd.backward

    def backward(
        tensors: Any,
        grad_tensors: Any = None,
        *rest: Any,
        grad_variables: Any = None,
        **options: Any,
    ) -> NoReturn:
        torch.autograd.backward = original  # some functions call it in their own backward
        try:
            with unseen():
                weights = grad_tensors if grad_tensors is not None else grad_variables
                roots = _tuple(tensors)
                given = _tuple(weights) or (None,) * len(roots)
                root = Root(roots, given, lambda: original(tensors, weights, *rest, **options))
                child.tell(loss=root.value, digest=root.digest)
                child.tell(**read(root))
        except BaseException as error:
            child.fault(error)
        child.end()

    torch.autograd.backward = backward
    optimizers._global_optimizer_pre_hooks[_HOOK] = lambda *_: child.fail(
        "an optimizer steps before the first backward pass"
    )
    iterator: Any = dataloader._MultiProcessingDataLoaderIter
    iterator._next_data = lambda *_: child.fail("a batch is fetched before the backward pass")


def _tuple(value: Any) -> tuple[Any, ...]:
    if value is None:
        return ()
    return tuple(value) if isinstance(value, (list, tuple)) else (value,)
