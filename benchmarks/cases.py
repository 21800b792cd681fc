"""The detection table as data: planted bugs, healthy variants, and pairs of unlike programs.

What is expected of each is written here; lab.py runs them, detection.py and the tests judge.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.harness import PROGRAMS, WORKLOADS, Variables

REFERENCE_STEPS = 60
TARGET_STEPS = 30
REFERENCE_SEED = 7

MLP = WORKLOADS / "mlp_digits.py"
CNN = WORKLOADS / "cnn_mnist.py"
GPT = PROGRAMS / "gpt_tiny.py"
FINETUNE = PROGRAMS / "finetune_digits.py"
GAN = PROGRAMS / "gan.py"
DROPOUT = PROGRAMS / "mlp_dropout.py"
BF16 = PROGRAMS / "cnn_bf16.py"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bug:
    """One planted bug and what must be said about it.

    first_steps: steps that count as the first affected one. variables: names that the first
    finding must hold, all of them. words: one of these must be in what it says. by_rules:
    whether rules alone must find it.
    """

    script: Path
    name: str
    first_steps: tuple[int, ...] = (0,)
    variables: frozenset[str] = frozenset()
    words: tuple[str, ...] = ()
    by_rules: bool = False

    @property
    def id(self) -> str:
        """A name for tables and test ids."""
        return f"{self.script.stem}-{self.name}"

    @property
    def env(self) -> Variables:
        """Settings of the run that has the bug."""
        return {"UP_BUG": self.name, "UP_STEPS": TARGET_STEPS}


@dataclass(frozen=True, slots=True, kw_only=True)
class Healthy:
    """A correct run that differs from its reference in something legitimate."""

    script: Path
    name: str
    changes: Variables = field(default_factory=dict)

    @property
    def id(self) -> str:
        """A name for tables and test ids."""
        return f"{self.script.stem}-{self.name}"

    @property
    def env(self) -> Variables:
        """Settings of the run."""
        return {"UP_STEPS": TARGET_STEPS, **self.changes}


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """A bug that invariants of an unlike healthy program must find, without rules."""

    reference: Path
    bug: Bug

    @property
    def id(self) -> str:
        """A name for tables and test ids."""
        return f"{self.reference.stem}-finds-{self.bug.id}"


def _both(model: str, *layers: str) -> frozenset[str]:
    return frozenset(f"{model}.{layer}.{kind}" for layer in layers for kind in ("weight", "bias"))


_ZERO = ("zero_grad", "cleared")
_STEP = ("step",)
_MODE = ("train", "eval", "mode")
_MLP_ALL = _both("Net", "fc1", "bn1", "fc2", "fc3")
_CNN_ALL = _both("Net", "conv1", "conv2", "fc1", "fc2")
_FROZEN = ("requires_grad", "require grad", "requires grad", "frozen", "gradient")
_MEMBER = ("optimizer",)

FORUM_84911 = Bug(
    script=MLP, name="forum84911", variables=_both("Net", "bn1"), words=_MEMBER, by_rules=True
)
MLP_NO_ZERO_GRAD = Bug(
    script=MLP, name="no_zero_grad", first_steps=(0, 1), words=_ZERO, by_rules=True
)
BUGS = (
    FORUM_84911,
    Bug(script=MLP, name="frozen_layer", variables=_both("Net", "fc1"), words=_FROZEN),
    Bug(
        script=MLP,
        name="wrong_params",
        variables=_both("Net", "fc1", "bn1", "fc2"),
        words=_MEMBER,
        by_rules=True,
    ),
    Bug(script=MLP, name="stale_opt", variables=_MLP_ALL, words=_MEMBER, by_rules=True),
    Bug(script=MLP, name="eval_stuck", first_steps=(24,), words=_MODE),
    MLP_NO_ZERO_GRAD,
    Bug(script=MLP, name="step_before_backward", words=_STEP, by_rules=True),
    Bug(script=MLP, name="no_step", words=_STEP, by_rules=True),
    Bug(script=MLP, name="detached", variables=_both("Net", "fc1", "bn1"), words=("gradient",)),
    Bug(
        script=CNN,
        name="wrong_params",
        variables=_both("Net", "conv1", "conv2", "fc1"),
        words=_MEMBER,
        by_rules=True,
    ),
    Bug(script=CNN, name="frozen_layer", variables=_both("Net", "conv1"), words=_FROZEN),
    Bug(script=CNN, name="stale_opt", variables=_CNN_ALL, words=_MEMBER, by_rules=True),
    Bug(script=CNN, name="eval_stuck", first_steps=(20,), words=_MODE),
    Bug(script=CNN, name="no_zero_grad", first_steps=(0, 1), words=_ZERO, by_rules=True),
    Bug(script=CNN, name="no_step", words=_STEP, by_rules=True),
)

HEALTHY = (
    Healthy(script=MLP, name="other_seed", changes={"UP_SEED": 3}),
    Healthy(script=MLP, name="sgd", changes={"UP_OPT": "sgd"}),
    Healthy(script=MLP, name="adamw", changes={"UP_OPT": "adamw"}),
    Healthy(script=MLP, name="other_lr", changes={"UP_LR": 0.01}),
    Healthy(script=MLP, name="schedule", changes={"UP_SCHED": 1}),
    Healthy(script=MLP, name="other_batch", changes={"UP_BS": 32}),
    Healthy(script=MLP, name="no_eval", changes={"UP_EVAL": 0}),
    Healthy(script=CNN, name="other_seed", changes={"UP_SEED": 3}),
    Healthy(script=CNN, name="sgd", changes={"UP_OPT": "sgd"}),
    Healthy(script=CNN, name="adam", changes={"UP_OPT": "adam"}),
    Healthy(script=CNN, name="other_lr", changes={"UP_LR": 0.3}),
    Healthy(script=CNN, name="no_schedule", changes={"UP_SCHED": 0}),
    Healthy(script=CNN, name="other_batch", changes={"UP_BS": 16}),
    Healthy(script=CNN, name="no_eval", changes={"UP_EVAL": 0}),
)

HEAD_REPLACED = Bug(
    script=FINETUNE, name="head_replaced", variables=_both("Transfer", "head"), words=_MEMBER
)
FINETUNE_FORUM = Bug(
    script=FINETUNE, name="forum84911", variables=_both("Transfer", "backbone.bn"), words=_MEMBER
)
FINETUNE_NO_ZERO_GRAD = Bug(script=FINETUNE, name="no_zero_grad", first_steps=(0, 1), words=_ZERO)

TRANSFERS = (
    Transfer(reference=FINETUNE, bug=FORUM_84911),
    Transfer(reference=FINETUNE, bug=MLP_NO_ZERO_GRAD),
    Transfer(reference=MLP, bug=HEAD_REPLACED),
    Transfer(reference=MLP, bug=FINETUNE_FORUM),
    Transfer(reference=MLP, bug=FINETUNE_NO_ZERO_GRAD),
    Transfer(reference=CNN, bug=HEAD_REPLACED),
    Transfer(reference=GPT, bug=HEAD_REPLACED),
    Transfer(reference=GPT, bug=MLP_NO_ZERO_GRAD),
    Transfer(reference=GPT, bug=FORUM_84911),
)

# Healthy programs of unlike structure, each checked with the invariants of each other.
PROGRAMS_APART = (MLP, CNN, FINETUNE, GPT, GAN, DROPOUT, BF16)
