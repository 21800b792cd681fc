"""The ranks of one run against its rank 0: what replicas must have alike."""

from __future__ import annotations

from dataclasses import replace

import msgspec

from traincheck.diff.conclude import conclude
from traincheck.diff.difference import Difference, EnvironmentEntry
from traincheck.diff.engine import Options, compare_rank
from traincheck.diff.items import Item
from traincheck.diff.phases import Phase
from traincheck.diff.run_facts import Run
from traincheck.diff.tally import Tally
from traincheck.errors import UsageError
from traincheck.schema.torch_api import DDP_INIT

# Ranks draw other samples, so what they compute before gradients are reduced is not the same.
_REPLICATED = frozenset({Phase.GRADIENT, Phase.OPTIMIZER_STATE, Phase.PARAMETER, Phase.BUFFER})
_SHARDING = ("fsdp", "tensor.parallel")
_RUNNING = (".running_mean", ".running_var")


def diff_ranks(run: Run, options: Options) -> Difference:
    """The first difference of a rank from rank 0, in variables that ranks replicate.

    Raises:
        UsageError: the run has one rank.
    """
    ranks = run.ranks
    if len(ranks) < 2:  # noqa: PLR2004
        raise UsageError(
            f"{run.path} has one rank",
            fix="record the run with all its ranks: traincheck-collect -- torchrun ... train.py",
        )
    broadcasts = shards = False
    for view in run.views(ranks[0]):
        for call in view.calls:
            if call.api == DDP_INIT:
                arguments = msgspec.json.decode(call.args)
                broadcasts |= arguments.get("broadcast_buffers") is not False
            shards |= any(word in call.api for word in _SHARDING)
        break  # models are wrapped before the first step ends
    wrapper = _Wrapper(broadcasts=broadcasts, shards=shards)
    chosen = replace(
        options, phases=options.phases & _REPLICATED, finds_resume=False, is_kept=wrapper.is_kept
    )
    found: list[tuple[int, Tally]] = []
    environment: tuple[EnvironmentEntry, ...] = ()
    for rank in ranks[1:]:
        tally, seen = compare_rank(run, run, (ranks[0], rank), chosen, None, (), ())
        if tally.evidence is not None:
            tally.evidence.is_ranks = True
            tally.evidence.a.label, tally.evidence.b.label = f"rank {ranks[0]}", f"rank {rank}"
        found.append((rank, tally))
        environment = environment or seen
    broken = [(tally.first.step[0], rank) for rank, tally in found if tally.first is not None]
    labels = f"rank {ranks[0]}", f"rank {min(broken)[1] if broken else ranks[1]}"
    words = options.closeness.words
    return conclude(run, run, found, None, environment, words, wrapper.notes, labels)


class _Wrapper:
    """How ranks keep their models alike, as the run tells it."""

    def __init__(self, *, broadcasts: bool, shards: bool) -> None:
        self._broadcasts, self._shards = broadcasts, shards
        self.notes: list[str] = []

    def is_kept(self, item: Item) -> bool:
        """Whether an item must be alike on all ranks."""
        if item.phase is Phase.BUFFER and self._broadcasts and item.name.endswith(_RUNNING):
            self._note(
                "running statistics are broadcast before each forward pass (broadcast_buffers), "
                "so they are not compared after it"
            )
            return False
        if self._shards and item.what in ("shape", "presence"):
            self._note("parts of sharded variables differ between ranks and are skipped")
            return False
        return True

    def _note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)
