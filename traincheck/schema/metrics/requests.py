"""Which metrics a monitor records, as a command line, a configuration or a program asks for them.

Does not import torch: the launcher and the command line also load this module.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from traincheck.errors import UsageError, suggested
from traincheck.schema.metrics.sums import STATISTICS, statistic

# Kinds of tensors: first part of the names of metrics, short name, what they are.
SUBJECTS = {
    "activation": ("act", "outputs of modules"),
    "activation_difference": ("diff", "outputs of modules less those of the reference"),
    "input": ("in", "inputs of modules, positional and keyword"),
    "activation_gradient": ("act_grad", "gradients of the outputs of modules"),
    "parameter": ("param", "parameters, before the optimizer steps"),
    "parameter_difference": ("param_diff", "parameters less those of the reference"),
    "gradient": ("grad", "gradients as the optimizer gets them"),
    "gradient_before_clip": ("clip", "gradients before clip_grad_norm_ or clip_grad_value_"),
    "update": ("upd", "what the optimizer step adds to parameters"),
    "optimizer_state": ("state", "tensors of the optimizer, such as exp_avg"),
    "attention": ("attn", "scaled_dot_product_attention, for each head"),
}
COMPARED = ("activation_difference", "parameter_difference")  # those that need a reference
ATTENTION = ("entropy", "max_logit", "query_norm", "key_norm", "value_norm")
RATIO = "ratio"  # of the norm of an update to that of the parameter
DEFAULT = ("act:rms,absmax", "grad:norm", "param:norm", "update:ratio")
DIFFERENCES = ("diff:rms", "param_diff:norm")  # in addition, where there is a reference
INITIAL = "init"  # the reference: each model as it is at its first measured forward
_USUAL = {"attention": ("entropy",), "update": (RATIO,)}
_SHORT = {short: name for name, (short, _) in SUBJECTS.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricRequest:
    """Statistics of one kind of tensor.

    Attributes:
        on: a name in SUBJECTS.
        statistics: names in STATISTICS; for attention in ATTENTION, for updates also RATIO.
        modules: a regular expression that the name of the module or variable must match from its
        beginning; empty for all.
        per: "row", "channel", "head" or "feature": one number for each index of the first, the
        second (also of heads) or the last dimension; empty for one number.
    """

    on: str
    statistics: tuple[str, ...]
    modules: str = ""
    per: str = ""

    def __post_init__(self) -> None:
        if self.on not in SUBJECTS:
            raise UsageError(
                f"there are no metrics of {self.on!r}",
                fix=f"{suggested(self.on, SUBJECTS)}"
                f"There are {', '.join(f'{short} ({name})' for short, name in _SHORT.items())}",
            )
        for name in self.statistics:
            if self.on == "attention":
                if name not in ATTENTION:
                    raise UsageError(
                        f"attention has no metric {name!r}",
                        fix=f"{suggested(name, ATTENTION)}There are {', '.join(ATTENTION)}",
                    )
            elif not (self.on == "update" and name == RATIO):
                statistic(name)
        if self.per not in ("", *DIMENSIONS):
            raise UsageError(
                f"per is {self.per!r}", fix=f"use one of {', '.join(DIMENSIONS)}, or leave it out"
            )
        checked(self.modules, "modules")

    @property
    def columns(self) -> frozenset[str]:
        """The sums that the statistics need."""
        known = [STATISTICS[name] for name in self.statistics if name in STATISTICS]
        own = frozenset({"squares"}) if RATIO in self.statistics else frozenset()
        return own.union(*(each.columns for each in known))


DIMENSIONS = {"row": 0, "channel": 1, "head": 1, "feature": -1}


@dataclass(frozen=True, slots=True, kw_only=True)
class MonitorView:
    """The view of a monitored run.

    Attributes:
        requests: which statistics of which tensors.
        modules: a regular expression that names must match from their beginning; empty for all.
        exclude: a regular expression of names that are left out; empty for none.
        plugins: files with functions that `traincheck.metric` marks.
        reference: INITIAL, a file with a state dict, or empty for no reference.
        coordinates: whether the terms of the refined coordinate check are taken.
    """

    requests: tuple[MetricRequest, ...]
    modules: str = ""
    exclude: str = ""
    plugins: tuple[str, ...] = ()
    reference: str = ""
    coordinates: bool = False

    def to_json(self) -> dict[str, Any]:
        """The view as JSON values, for settings and manifests."""
        return {
            "metrics": [
                {"on": r.on, "statistics": list(r.statistics), "modules": r.modules, "per": r.per}
                for r in self.requests
            ],
            "modules": self.modules,
            "exclude": self.exclude,
            "plugins": list(self.plugins),
            "reference": self.reference,
            "coordinates": self.coordinates,
        }

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> MonitorView:
        """The view that `to_json` gave.

        Raises:
            KeyError, TypeError, UsageError: it is not such a record.
        """
        return cls(
            requests=tuple(
                MetricRequest(**{**one, "statistics": tuple(one["statistics"])})
                for one in record["metrics"]
            ),
            modules=record["modules"],
            exclude=record["exclude"],
            plugins=tuple(record["plugins"]),
            reference=record.get("reference", ""),
            coordinates=record.get("coordinates", False),
        )


def checked(pattern: str, name: str) -> re.Pattern[str]:
    """A regular expression.

    Raises:
        UsageError: it is not one.
    """
    try:
        return re.compile(pattern)
    except re.error as error:
        raise UsageError(
            f"{name} is not a regular expression: {pattern!r}: {error}",
            fix="for example '.*attn.*'",
        ) from error


def parse_requests(texts: Iterable[str]) -> tuple[MetricRequest, ...]:
    """Requests as the command line has them: ``act:rms,absmax``.

    Raises:
        UsageError: a kind of tensor or a statistic is unknown.
    """
    return tuple(_parsed(text) for text in texts)


def _parsed(text: str) -> MetricRequest:
    word, _, names = text.partition(":")
    statistics = tuple(name.strip() for name in names.split(",") if name.strip())
    return request(word.strip(), statistics)


def request(
    on: str, statistics: tuple[str, ...] = (), *, modules: str = "", per: str = ""
) -> MetricRequest:
    """A request by the long or the short name of a kind of tensor.

    Raises:
        UsageError: something in it is unknown.
    """
    on = _SHORT.get(on, on)
    statistics = statistics or _USUAL.get(on, ("rms",))
    return MetricRequest(on=on, statistics=statistics, modules=modules, per=per)
