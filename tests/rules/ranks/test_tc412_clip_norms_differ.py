"""TC412: ranks of a sharded model that clip by different norms."""

from __future__ import annotations

from tests.checking import fires, quiet
from tests.golden import mentions
from tests.ranks import RankBuilder, two_ranks
from traincheck.readings.distributed.rank_steps import FSDP_FORWARD
from traincheck.schema.events import Event
from traincheck.schema.findings import Verdict
from traincheck.schema.torch_api import Families
from traincheck.schema.values import TensorSummary, tensor_json


def run(*norms: float | None, sharded: bool = True) -> list[Event]:
    def play(rank: RankBuilder) -> None:
        for _ in range(2):
            rank.begin_step().zero_grad()
            if sharded:
                rank.call(FSDP_FORWARD, family=Families.MODULE, module="Net", root=True)
            value = tensor_json(TensorSummary("float32", (), value=norms[rank.rank]))
            rank.backward().call(Families.CLIP_NORM, result=value, where="train.py:86")
            rank.optimizer_step()

    return two_ranks(play, wrap=False)


BROKEN = run(5.5, 18.5)


def test_fires_at_the_first_step() -> None:
    finding = fires("TC412", BROKEN)
    assert (finding.first_step, finding.violations) == (0, 1)
    assert mentions(finding, 5.5, "train.py:86")


def test_quiet_on_equal_norms() -> None:
    assert quiet("TC412", run(5.5, 5.5)) is Verdict.HELD


def test_quiet_where_norms_are_not_known_or_the_model_is_not_sharded() -> None:
    assert quiet("TC412", run(None, None)) is Verdict.NOT_TRIGGERED
    assert quiet("TC412", run(5.5, 18.5, sharded=False)) is Verdict.NOT_TRIGGERED
