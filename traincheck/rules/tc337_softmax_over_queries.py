"""TC337: weights of attention that are normalized over another dim than that of the keys."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from traincheck.rules._causal import ALL, KEYS, QUERIES, softmax_dim, text_length
from traincheck.rules._losses import CROSS_ENTROPY, NLL, are_next_tokens, as_loss, given, number
from traincheck.rules._single import SingleEvents
from traincheck.schema.apis import SOFTMAXES, Families
from traincheck.schema.claims import Needs
from traincheck.schema.events import CallEvent, Event, StepEvent
from traincheck.schema.findings import CheckInfo, Subject, Symptom, Violation
from traincheck.schema.values import tensor_summary

_LOSSES = frozenset({CROSS_ENTROPY, NLL})
_PROOF = 2  # steps
_NDIM = 3  # of weights of attention, at least
_POSITIONS = 4


class SoftmaxOverQueries:
    """TC337 softmax-over-queries: weights of attention do not add up to 1 over the keys.

    What it checks:
        Softmax over scores of attention in a causal language model runs over the last dim, that of
        the keys.

    Why it matters:
        Over dim=1 it runs over the heads, over dim=-2 over the queries. Then a position does not
        take a mean of what it sees but any multiple of it, and how much depends on positions behind
        it, which it is not to see. With a causal mask of -inf, later positions become NaN over the
        heads. The model trains, worse than it could.

    Fires on:
        Two training steps in which softmax over squares of scores, in the last two dims of three or
        more, never runs over the last: over the one before, where later positions get nothing; or
        over any, where the target of a loss is the next tokens and the squares have as many rows.

    Stays quiet on:
        A softmax over each of both dims, as for matching; squares of other sizes; attention whose
        keys come in the dim before the last; models of anything but text, unless a mask shows which
        dim is which; evaluation; steps between the sampled ones.

    Fix:
        scores.softmax(dim=-1), where scores are query @ key.transpose(-2, -1).

    Source:
        https://github.com/FudanNLP/fastNLP/issues/254, https://github.com/labmlai/annotated_deep_learning_paper_implementations/issues/146
    """

    info = CheckInfo(
        check_id="TC337",
        kind="rule",
        code="TC337",
        severity="error",
        title="Weights of attention are normalized over the wrong dim",
        likely_cause="{observed}; over the keys, the last one, they do not add up to 1.",
        fix="Take softmax over the last dim: scores.softmax(dim=-1).",
    )
    needs = Needs(
        calls=_LOSSES | SOFTMAXES | {Families.MODULE},
        kinds=frozenset({"batch", "step"}),
        stats=_LOSSES | SOFTMAXES | {"batch"},
    )

    def monitor(self) -> Normalized:
        return Normalized()


@dataclass(slots=True)
class _Step:
    """What a rank has done since its last step: softmax over squares of scores, by their size."""

    others: list[CallEvent] = field(default_factory=list)  # over a dim that is not the last
    over_keys: set[int] = field(default_factory=set)
    lengths: set[int | None] = field(default_factory=set)  # of the rows that models are given
    is_next: bool = False  # a target was the next tokens of them


class Normalized(SingleEvents):
    """Joins each softmax of a step with what its losses were given."""

    def __init__(self) -> None:
        super().__init__()
        self._steps: defaultdict[int, _Step] = defaultdict(_Step)  # by rank
        self._first: Violation | None = None
        self._found = 0

    def judge(self, event: Event) -> list[Violation]:
        if self._found >= _PROOF:
            return []
        if isinstance(event, StepEvent):
            return self._conclude(self._steps.pop(event.rank, _Step()))
        if isinstance(event, CallEvent) and event.grad_enabled and event.stage == "train":
            self._call(self._steps[event.rank], event)
        return []

    def _call(self, step: _Step, event: CallEvent) -> None:
        size = _size(event)
        if size:
            if softmax_dim(event) == KEYS:
                step.over_keys.add(size)
            else:
                step.others.append(event)
        elif event.family == Families.MODULE and event.root:
            step.lengths.add(text_length(event.args))
        elif (loss := as_loss(event, _LOSSES)) is not None:
            step.is_next |= are_next_tokens(given(loss, "target"))

    def _conclude(self, step: _Step) -> list[Violation]:
        if step.over_keys or step.others:
            self.triggered += 1
        wrong = [
            call
            for call in step.others
            if _size(call) not in step.over_keys
            and (_hides_keys(call) or (step.is_next and _size(call) in step.lengths))
        ]
        if not wrong:
            return []
        self._found += 1
        self._first = self._first or _violation(wrong)
        return [self._first] if self._found == _PROOF else []


def _size(call: CallEvent) -> int:
    """Of the square that a softmax with a known dim gives; 0 of anything else."""
    result = tensor_summary(call.result) if call.api in SOFTMAXES else None
    if result is None or len(result.shape) < _NDIM or softmax_dim(call) is None:
        return 0
    rows, columns = result.shape[-2:]
    return columns if rows == columns >= _POSITIONS else 0


def _hides_keys(call: CallEvent) -> bool:
    """Whether the last dim is that of the keys, as those behind each position get nothing."""
    hidden = number(tensor_summary(call.result), "hidden")
    return softmax_dim(call) == QUERIES and hidden is not None and hidden >= ALL


def _violation(calls: list[CallEvent]) -> Violation:
    call = calls[0]
    result = tensor_summary(call.result)
    shape = [] if result is None else list(result.shape)
    over = "the queries" if softmax_dim(call) == QUERIES else "heads or samples"
    times = "" if len(calls) == 1 else f", {len(calls)} times in a step"
    observed = f"softmax over dim {call.args.get('dim')} of {shape}: {over}{times}"
    return Violation(
        check_id="TC337",
        step=call.step,
        rank=call.rank,
        stage=call.stage,
        subject=Subject(api=call.api, module=call.module),
        symptom=Symptom.UNMASKED,
        message=f"weights of attention do not add up to 1: {observed}",
        expected="a softmax over the last dim, the keys",
        observed=observed,
        evidence=(call,),
    )
