"""`traincheck.probe`: test a model of this process by experiments on copies."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from traincheck.collect.active_session import CURRENT
from traincheck.collect.probes.models import Loss, Model, copied, kept_random_states, train
from traincheck.errors import UsageError
from traincheck.integrations.watching import watch
from traincheck.page.notebook import report_html
from traincheck.report.run_summary import probe_rows
from traincheck.schema.findings import Findings, Report
from traincheck.schema.probes.event import ProbeEvent
from traincheck.store.reader import TraceReader

_RULES = "TC00"


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


def probe(model: Model, /, *batch: Any, loss: Loss | None = None, **inputs: Any) -> ProbeRun:
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
        with kept_random_states():
            ours, given, named = copied(model, batch, inputs)
            with watch(ours, probe=True, select=[_RULES], output=folder) as run:
                train(ours, given, named, loss)
        events = [e for e in TraceReader(Path(folder)).events() if isinstance(e, ProbeEvent)]
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return ProbeRun(run.report(), tuple(events))
