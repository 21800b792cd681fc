"""Hand-made traces of a run that saves, and of one that resumes from it."""

from __future__ import annotations

from typing import Any

from tests.builders import MLP, TraceBuilder
from traincheck.schema.events import CheckpointEvent
from traincheck.schema.torch_api import Families

PATH = "out/last.pt"
PARTS = {
    "model": {"kind": "model", "entries": 4},
    "optimizer": {"kind": "optimizer", "params": 4, "entries": 4, "lr": [1e-3]},
    "scheduler": {"kind": "scheduler", "last_epoch": 3},
}


class Resuming(TraceBuilder):
    """A process that resumes; every part of it can be left out."""

    def checkpoint(self, op: str, **fields: Any) -> Resuming:
        self.add(CheckpointEvent, op=op, **fields)
        return self

    def begin(self, *, parts: dict[str, Any] | None = None) -> Resuming:
        self.process().model("Net", MLP)
        self.checkpoint("load", path=PATH, parts=PARTS if parts is None else parts)
        self.checkpoint("load_state_dict", target="Net", matched=4, changed=4)
        return self

    def load_optimizer(self) -> Resuming:
        return self.checkpoint("load_state_dict", target="torch.optim.adam.Adam", owner="opt0")

    def load_scheduler(self) -> Resuming:
        return self.checkpoint("load_state_dict", target="torch.optim.lr_scheduler.StepLR")

    def scheduler(self, last_epoch: int = -1) -> Resuming:
        self.call(
            "torch.optim.lr_scheduler.StepLR.__init__",
            family=Families.SCHEDULER_CREATED,
            owner="opt0",
            args={"last_epoch": last_epoch},
            where="train.py:50",
        )
        return self

    def train(self, *_: Any, **options: Any) -> Resuming:
        self.steps(2, scheduler=options.get("scheduled", False))
        for event in [e for e in self.events if e.kind == "call"]:
            if event.family == Families.SCHEDULER_STEP:  # type: ignore[union-attr]
                self.edit(event, owner="opt0")
        return self.checkpoint("save", path=options.get("path", PATH), parts=PARTS)
