"""Names that programs written for the research release import. They have no effect here."""

from __future__ import annotations

from typing import Any

__all__ = ["META_VARS", "meta_vars"]

META_VARS: dict[str, Any] = {"step": -1}  # plain dict: steps are counted without it
meta_vars = META_VARS
