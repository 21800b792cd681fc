"""The records of each instrument: declared once, for recording and for checks.

Recording installs an instrument when a check needs what it records. Checks that need it are *not
observable* when it was off.
"""

from __future__ import annotations

from dataclasses import dataclass

from traincheck.schema.claims import Needs, without_sampling
from traincheck.schema.observations.base import Observation
from traincheck.schema.observations.registry import OBSERVATIONS
from traincheck.schema.torch_api import DDP_HOOK, DDP_INIT, GRAD, JOIN, RESHAPES, Families

_NOTHING: frozenset[str] = frozenset()
_VARIABLES = frozenset({"parameter", "gradient", "buffer", "optimizer_state"})
# Functions of torch itself that are recorded as those of torch.nn.functional are
_OPERATORS = ("bmm", "matmul", "mm", "relu", "sigmoid", "softmax", "tanh")


@dataclass(frozen=True, slots=True, kw_only=True)
class Feed:
    """The records of one instrument, which are missing if it is off.

    Attributes:
        instrument: its name.
        families: API families that a selective recording installs it for.
        calls: beginnings of other API and family names.
        ends: ends of them.
        roles: of the variables that it scans, in front of their moments.
        kinds: of events.
        stats: of which tensors it takes numbers; those of an API go with its calls.
        packages: whether it records the user's own packages.
        observations: those that are recorded by it.
    """

    instrument: str
    families: tuple[str, ...] = ()
    calls: tuple[str, ...] = ()
    ends: tuple[str, ...] = ()
    roles: frozenset[str] = _NOTHING
    kinds: frozenset[str] = _NOTHING
    stats: frozenset[str] = _NOTHING
    packages: bool = False

    @property
    def observations(self) -> tuple[type[Observation], ...]:
        return tuple(each for each in OBSERVATIONS if each.instrument == self.instrument)

    def serves(self, needs: Needs) -> bool:
        """Whether ``needs`` depends on it."""
        return (
            any(map(self.has_call, without_sampling(needs.calls)))
            or any(map(self.has_state, without_sampling(needs.states)))
            or not self.kinds.isdisjoint(needs.kinds)
            or any(map(self.has_stat, without_sampling(needs.stats)))
            or any(each.text in needs.marks for each in self.observations)
            or (self.packages and bool(needs.packages))
        )

    def has_call(self, api: str) -> bool:
        """Whether it records calls of this name."""
        return api.startswith((*self.families, *self.calls)) or api.endswith(self.ends)

    def has_state(self, state: str) -> bool:
        """Whether it records this ``role@moment``."""
        return state.partition("@")[0] in self.roles or any(
            state == each.need for each in self.observations
        )

    def has_stat(self, name: str) -> bool:
        """Whether it takes these numbers."""
        return name in self.stats or (not name.isidentifier() and self.has_call(name))


_ALL = (
    Feed(
        instrument="modules",
        families=(Families.MODULE,),
        ends=(".forward",),
        roles=_VARIABLES,
        stats=frozenset({"activation", "input", "parameter"}),
    ),
    Feed(
        instrument="functional",
        calls=(
            "torch.nn.functional.",
            "torch.Tensor.",
            "torch.nn.init.",
            *(f"torch.{name}" for name in _OPERATORS),
        ),
        stats=frozenset({"activation"}),
    ),
    Feed(instrument="reshapes", calls=tuple(RESHAPES)),
    Feed(
        instrument="optimizers",
        families=(Families.OPTIMIZER_STEP, Families.ZERO_GRAD),
        calls=("torch.optim.", "torch.nn.Module.zero_grad"),
        roles=_VARIABLES - {"buffer"},
        kinds=frozenset({"optimizer", "step"}),
        stats=frozenset({"parameter", "update"}),
    ),
    Feed(
        instrument="autograd",
        families=(Families.BACKWARD, GRAD),
        calls=("torch.autograd.",),
        roles=frozenset({"gradient"}),
        stats=frozenset({"gradient"}),
    ),
    Feed(
        instrument="amp",
        families=(Families.SCALER_STEP, Families.SCALER_UPDATE, Families.UNSCALE),
        calls=("torch.amp.", "torch.cuda.amp."),
    ),
    Feed(
        instrument="schedulers",
        families=(Families.SCHEDULER_STEP, Families.SCHEDULER_CREATED),
        calls=("torch.optim.lr_scheduler.",),
    ),
    Feed(
        instrument="clipping",
        families=(Families.CLIP_NORM, Families.CLIP_VALUE, Families.FSDP_CLIP),
        calls=("torch.nn.utils.clip_grad",),
    ),
    Feed(instrument="modes", families=(Families.TRAIN, Families.EVAL)),
    Feed(
        instrument="data",
        roles=frozenset({"batch"}),
        kinds=frozenset({"batch"}),
        stats=frozenset({"batch"}),
    ),
    Feed(instrument="rng", kinds=frozenset({"rng"})),
    Feed(instrument="rng_state", families=(Families.SET_RNG_STATE,)),
    Feed(instrument="checkpoint", kinds=frozenset({"checkpoint"})),
    Feed(
        instrument="distributed",
        families=(DDP_INIT, DDP_HOOK, JOIN),
        kinds=frozenset({"collective"}),
        roles=frozenset({"collective"}),
    ),
    Feed(instrument="warnings", kinds=frozenset({"warning"})),
    Feed(instrument="packages", packages=True),
    Feed(instrument="comparison"),
    Feed(instrument="checksums", kinds=frozenset({"checksum"})),
    Feed(instrument="transforms"),
    Feed(instrument="monitor", kinds=frozenset({"metrics"})),
    Feed(instrument="probes", kinds=frozenset({"probe"})),
)
FEEDS = {feed.instrument: feed for feed in _ALL}
