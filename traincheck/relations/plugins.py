"""Adapters for relations of other packages, which may lack members that have a default."""

from __future__ import annotations

from typing import Any

from traincheck.relations.base import ProposerBase, RelationBase


class PluginRelation(RelationBase):
    """A relation of another package, with defaults for the members that it lacks."""

    def __init__(self, relation: Any) -> None:
        _adopt(self, relation)
        self._relation = relation

    def proposer(self) -> PluginProposer:
        return PluginProposer(self._relation.proposer())


class PluginProposer(ProposerBase):
    """A proposer of another package, with defaults for the members that it lacks."""

    def __init__(self, proposer: Any) -> None:
        _adopt(self, proposer)


def _adopt(adapter: Any, plugin: Any) -> None:
    """Give an adapter the public members of ``plugin``, but for those that it defines itself."""
    for name in dir(plugin):
        if not name.startswith("_") and name not in vars(type(adapter)):
            setattr(adapter, name, getattr(plugin, name))
