"""Some filters of a convolution are zero when first recorded. Advice only: it may be pruned."""

from __future__ import annotations

import math
from collections.abc import Sequence

from traincheck.rules.base.rule import BuiltInRule
from traincheck.rules.shared.numbers import MATRIX, is_kernel, number
from traincheck.schema.claims import Needs
from traincheck.schema.events import Event, StateEvent
from traincheck.schema.findings import Subject, Symptom, Violation


class DeadFilters(BuiltInRule, code="TC714", severity="info"):
    """dead-filters: some filters of a layer are zero and others are not.

    What it checks:
        When a layer is first recorded, none of its filters (rows of a linear layer) has a norm
        below 1e-6.

    Why it matters:
        Such a filter computes nothing, and before a ReLU it never will. Pruning does this on
        purpose. A broken initialization or a mismatched checkpoint does it by accident.

    Fires on:
        - A weight of a linear, convolutional or transposed convolutional layer in which some rows
          or filters are zero, but not all.

    Stays quiet on:
        - Layers initialized with zeros only (LoRA, the last layer of a residual branch).
        - Embeddings, whose padding row is zero, and output layers that share their weight.
        - Layers of one filter.

    Fix:
        Initialize the filters that are named, or remove them if they were pruned.

    Options:
        share: share of zero filters above which the rule fires, in [0, 1].

    Source:
        https://docs.aws.amazon.com/sagemaker/latest/dg/debugger-built-in-rules.html
    """

    title = "Some filters of {variables} are zero"
    likely_cause = "{observed}: they may have been pruned, or never initialized."
    fix = "Initialize these filters, or remove them if they were pruned."
    needs = Needs(states=frozenset({"parameter@new"}), stats=frozenset({"parameter"}))

    def __init__(self, share: float = 0.0) -> None:
        super().__init__()
        self.share = share
        self._found: dict[int, Violation] = {}  # by identity of the weight
        self._embedded: set[int] = set()

    def observe(self, event: Event) -> Sequence[Violation]:
        if not isinstance(event, StateEvent) or event.change not in ("new", "replaced"):
            return ()
        if "Embedding" in (event.module_class or "").rpartition(".")[2]:
            self._embedded.add(event.identity)  # also of a weight that an output layer shares
        dead = number(event, "dead")
        if dead is None or event.summary is None or not is_kernel(event.module_class):
            return ()
        if len(event.summary.shape) < MATRIX or event.summary.shape[0] <= 1:
            return ()
        self.triggered += 1
        if dead <= self.share or dead >= 1:
            return ()
        count = math.floor(dead * event.summary.shape[0] + 0.5)
        observed = f"{count} of {event.summary.shape[0]} filters of {event.name} are zero"
        self._found[event.identity] = self.violation(
            event,
            subject=Subject(variable=event.name),
            symptom=Symptom.INITIALIZATION,
            message=observed,
            expected="filters that are not zero",
            observed=observed,
        )
        return ()

    def finish(self) -> Sequence[Violation]:
        """Report now that all names of each weight are known."""
        return [v for identity, v in self._found.items() if identity not in self._embedded]
