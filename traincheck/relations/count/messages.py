"""Sentences about counts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from traincheck.relations.phrasing import display_name
from traincheck.schema.words import counted

# How often ``detach`` is called is a habit that says where gradients go.
CUT: Mapping[str, str] = {
    "likely_cause": (
        "A tensor is detached that is not detached in the reference, or the other way round: "
        "gradients take another path{where}."
    ),
    "fix": "Find the detach() call that was added or removed{where}.",
}


def subject_of(params: Mapping[str, Any]) -> str:
    """The counted calls of a claim, in words."""
    name, whose = display_name(params["api"]), params.get("owner") or params.get("module")
    return name if not whose or name == f"{whose}.forward" else f"{name} of {whose}"


def often_of(params: Mapping[str, Any]) -> str:
    """How often, in words."""
    times = params["times"]
    plural = counted(times, "time")
    return {
        "exactly": "once" if times == 1 else f"exactly {plural}",
        "least": f"at least {plural}",
        "multiple": f"a multiple of {plural}",
    }[params["form"]]
