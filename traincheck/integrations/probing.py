"""`traincheck.probe`: test a model of this process by experiments on copies."""

from __future__ import annotations

import copy
import random
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from traincheck.collect.active_session import CURRENT
from traincheck.collect.probes.tree import mapped
from traincheck.errors import UsageError
from traincheck.integrations.watching import watch
from traincheck.report.probe_rows import probe_rows
from traincheck.schema.findings import Findings, Report
from traincheck.schema.probes.event import ProbeEvent
from traincheck.schema.shown import report_html
from traincheck.store.reader import TraceReader

if TYPE_CHECKING:
    import torch

    Loss = Callable[[Any], torch.Tensor]

_RULES = "TC00"
_STEPS = 3  # experiments are made in the third step in which a model is called


@dataclass(frozen=True, slots=True)
class ProbeRun:
    """The result of `probe`.

    Attributes:
        report: of the rules about experiments.
        experiments: what was measured, one event for each experiment.
    """

    report: Report
    experiments: Sequence[ProbeEvent]

    @property
    def findings(self) -> Findings:
        """The findings, the first cause first."""
        return Findings(self.report.findings)

    def __str__(self) -> str:
        """The findings, then what held and what could not be observed."""
        from io import StringIO

        from traincheck.report.text_report import write_text

        text = StringIO()
        write_text(self.report, text)
        rows = [f"{label:>16}  {said}" for label, said in probe_rows(self.experiments)]
        return "\n".join([text.getvalue().rstrip(), *rows])

    def __repr__(self) -> str:
        found = [f"{each.name} {each.status}" for each in self.experiments]
        return f"<traincheck: {', '.join(found) or 'nothing was probed'}>"

    def _repr_html_(self) -> str:
        return report_html(self.report)


def probe(
    model: torch.nn.Module, /, *batch: Any, loss: Loss | None = None, **inputs: Any
) -> ProbeRun:
    """Test a model by the experiments of ``traincheck probe``, on one batch.

    The model is copied, and the copy is called with the batch in training mode. Experiments are
    made on copies of the process. The model, its gradients and all random generators stay as they
    are.

    Args:
        model: in any mode.
        *batch: positional arguments of the model.
        loss: the loss of what the model returns, a scalar. Without it, the attribute ``loss`` of
            the result, or a result that is a scalar, is taken; else only the experiments are made
            that need no loss.
        **inputs: keyword arguments of the model.

    Returns:
        findings, and what was measured. Its text lists what held and what could not be observed.

    Raises:
        UsageError: the model cannot be copied, or this process is recorded already.
        LaunchError: this system is not Linux.
    """
    if CURRENT.session is not None:
        raise UsageError(
            "this process is recorded already",
            fix="call traincheck.probe outside of it, or watch(probe=True), or run --probe",
        )
    folder = tempfile.mkdtemp(prefix="traincheck-")
    try:
        with _kept_random_states():
            ours, given, named = _copied(model, batch, inputs)
            with watch(ours, probe=True, select=[_RULES], output=folder) as run:
                _train(ours, given, named, loss)
        events = [e for e in TraceReader(Path(folder)).events() if isinstance(e, ProbeEvent)]
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return ProbeRun(run.report(), tuple(events))


def _copied(model: torch.nn.Module, batch: Any, inputs: Any) -> tuple[torch.nn.Module, Any, Any]:
    """The model in training mode and the inputs, as copies."""
    try:
        ours = copy.deepcopy(model)
    except Exception as error:
        raise UsageError(
            f"the model cannot be copied: {type(error).__name__}: {error}",
            fix="probe the training script instead: traincheck probe train.py",
        ) from error
    given, named = mapped((batch, inputs), lambda tensor: tensor.detach().clone())
    ours.zero_grad()
    return ours.train(), given, named


def _train(model: torch.nn.Module, batch: Any, inputs: Any, loss: Loss | None) -> None:
    """Steps without an update: the copy keeps its weights."""
    import torch

    import traincheck

    traincheck.step()
    for _ in range(_STEPS):
        result = model(*batch, **inputs)
        value = getattr(result, "loss", result) if loss is None else loss(result)
        if isinstance(value, torch.Tensor) and value.numel() == 1 and value.requires_grad:
            value.backward()  # type: ignore[no-untyped-call]
        elif loss is not None:
            raise UsageError(
                f"the loss returned {type(value).__name__}, which is no scalar with a gradient",
                fix="probe(model, x, loss=lambda out: torch.nn.functional.cross_entropy(out, y))",
            )
        model.zero_grad()
        traincheck.step()


@contextmanager
def _kept_random_states() -> Iterator[None]:
    """Put the generators of torch, Python and numpy back at the end."""
    import torch

    numpy: Any = getattr(sys.modules.get("numpy"), "random", None)
    ours, theirs = random.getstate(), numpy.get_state() if numpy is not None else None
    try:
        with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
            yield
    finally:
        random.setstate(ours)
        if numpy is not None:
            numpy.set_state(theirs)
