"""Whether the backward of an `autograd.Function` is the derivative of its forward.

It is called again with inputs that are moved a little. Where its backward says something else, its
own behaviour shows whether that is meant: a backward can be for the sake of its gradient only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from traincheck.collect.probes.batch import leaves, mapped
from traincheck.handlers import give_back

_ERROR = 0.01  # relative
_STEPS = {torch.float64: 1e-5, torch.float32: 1e-3}  # of the size of an input
_FAR = 0.1  # a move that shows what a gradient depends on
_STILL = 0.01  # share of the results that may move, where a result follows its input by jumps


@dataclass(frozen=True, slots=True)
class Purpose:
    """The finding about a class.

    Attributes:
        by_design: why its gradient is another one on purpose, as a clause; empty if it is not.
        is_wrong: its backward is not the derivative of its forward, and nothing shows a purpose.
    """

    by_design: str = ""
    is_wrong: bool = False


def purpose_of(apply: Callable[..., Any], args: tuple[Any, ...]) -> Purpose:
    """Judge one call. args: copies of its arguments; those that require a gradient are leaves."""
    for dtype in _STEPS:  # kernels that are compiled take their own only
        try:
            return _compared(_Trial(apply, args, dtype))
        except Exception as error:
            give_back(error)
    return Purpose("cannot be called again")


class _Trial:
    """Calls a function again and again, from one state of the random numbers."""

    def __init__(self, apply: Callable[..., Any], args: Any, dtype: torch.dtype) -> None:
        self.args = mapped(args, lambda tensor: _as(tensor, dtype))
        self.step = _STEPS[dtype]
        self._apply = apply
        self._state = torch.get_rng_state()
        self._noise = torch.Generator().manual_seed(0)
        self._weights: list[torch.Tensor] = []

    @property
    def inputs(self) -> list[int]:
        """Places of the tensors that require a gradient."""
        return [i for i, tensor in enumerate(leaves(self.args)) if tensor.requires_grad]

    def like(self, tensor: torch.Tensor) -> torch.Tensor:
        """Numbers of the size of those of a tensor."""
        size = tensor.detach().double().square().mean().sqrt().clamp_min(1e-3)
        drawn = torch.randn(tensor.shape, generator=self._noise, dtype=torch.float64, device="cpu")
        return (drawn.to(tensor.device) * size).to(tensor.dtype)

    def moved(self, *moves: tuple[int, torch.Tensor]) -> Any:
        """The arguments, some of them moved."""
        by_place: dict[int, torch.Tensor] = {}
        for place, by in moves:
            by_place[place] = by_place.get(place, 0) + by
        places = iter(range(len(list(leaves(self.args)))))

        def move(tensor: torch.Tensor) -> torch.Tensor:
            by = by_place.get(next(places))
            copy = tensor.detach().clone() if by is None else tensor.detach() + by
            return copy.requires_grad_(tensor.requires_grad)

        return mapped(self.args, move)

    def results(self, args: Any) -> list[torch.Tensor]:
        """The numbers that it returns."""
        torch.set_rng_state(self._state)
        with torch.enable_grad():  # some write into their inputs, which are no leaves then
            given = mapped(args, lambda t: t * 1 if t.requires_grad else t.clone())
            return [t for t in leaves(self._apply(*given)) if t.requires_grad]

    def gradients(self, args: Any) -> list[torch.Tensor]:
        """The gradients that its backward gives to the inputs, for fixed weights."""
        made = self.results(args)
        inputs = [tensor for tensor in leaves(args) if tensor.requires_grad]
        found = torch.autograd.grad(made, inputs, self.weights(made), allow_unused=True)
        return [torch.zeros_like(i) if g is None else g for i, g in zip(inputs, found)]

    def weights(self, results: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        if not self._weights:
            self._weights = [
                torch.randn(r.shape, generator=self._noise, dtype=torch.float64, device="cpu")
                for r in results
            ]
        return [w.to(r.device, r.dtype) for w, r in zip(self._weights, results)]

    def slope(
        self, place: int, direction: torch.Tensor, *about: tuple[int, torch.Tensor]
    ) -> list[torch.Tensor]:
        """How the results follow an input. about: moves of inputs before."""
        up, down = (
            self.results(self.moved(*about, (place, direction * (side * self.step))))
            for side in (1, -1)
        )
        return [(a.detach() - b.detach()) / (2 * self.step) for a, b in zip(up, down)]


def _compared(trial: _Trial) -> Purpose:
    base = [result.detach() for result in trial.results(trial.args)]
    if not _are_equal(base, trial.results(trial.args)):
        return Purpose("returns something else when it is called again")
    places, claimed = trial.inputs, trial.gradients(trial.args)
    given = list(leaves(trial.args))
    is_wrong = False
    for place, gradient in zip(places, claimed):
        direction = trial.like(given[place])
        slope = trial.slope(place, direction)
        true = sum(float((w * s).sum()) for w, s in zip(trial.weights(slope), slope))
        said = float((gradient * direction).sum())
        if abs(true - said) <= _ERROR * max(abs(true), abs(said)):
            continue
        if any(_are_equal([given[place]], [result]) for result in base):
            return Purpose("returns its input")
        if _is_still(slope, gradient, direction, trial):
            return Purpose("returns what does not follow its input")
        if _is_stored(trial, base, claimed, place, direction, slope):
            return Purpose("returns a gradient that was given to it")
        is_wrong = True
    return Purpose(is_wrong=is_wrong)


def _is_still(
    slope: Sequence[torch.Tensor], gradient: torch.Tensor, direction: torch.Tensor, trial: _Trial
) -> bool:
    """Whether results stand still where the backward gives a gradient: they jump, or saturate."""
    count = sum(part.numel() for part in slope)
    if sum(int((part != 0).sum()) for part in slope) <= _STILL * count:
        return True
    if len(slope) != 1 or slope[0].shape != direction.shape:
        return False
    each = slope[0] / direction  # of a function of each element
    true = trial.weights(slope)[0] * each
    wrong = (gradient - true).abs() > _ERROR * torch.maximum(gradient.abs(), true.abs())
    return bool(wrong.any()) and not bool(slope[0][wrong].any())


def _is_stored(
    trial: _Trial,
    base: Sequence[torch.Tensor],
    claimed: Sequence[torch.Tensor],
    place: int,
    direction: torch.Tensor,
    slope: Sequence[torch.Tensor],
) -> bool:
    """Whether the gradient is not computed from what the result is computed from.

    It depends on an argument that the result does not depend on, or on no input, where the slope
    of the result does.
    """
    for other, tensor in enumerate(leaves(trial.args)):
        if tensor.requires_grad or not tensor.is_floating_point():
            continue
        args = trial.moved((other, _FAR * trial.like(tensor)))
        is_same = _are_equal(base, trial.results(args))
        if is_same and not _are_equal(claimed, trial.gradients(args)):
            return True
    given = list(leaves(trial.args))
    moves = [(each, _FAR * trial.like(given[each])) for each in trial.inputs]
    if not _are_equal(claimed, trial.gradients(trial.moved(*moves))):
        return False
    other_slope = trial.slope(place, direction, *moves)
    return any(
        bool(((a - b).abs() > _ERROR * a.abs().max()).any()) for a, b in zip(slope, other_slope)
    )


def _are_equal(first: Sequence[torch.Tensor], second: Sequence[torch.Tensor]) -> bool:
    return all(bool(torch.equal(a, b)) for a, b in zip(first, second))


def _as(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    plain = tensor.detach().to(dtype) if tensor.is_floating_point() else tensor
    return plain.requires_grad_(tensor.requires_grad)
