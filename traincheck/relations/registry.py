"""The relations there are: ours, one line each, and those that installed packages add."""

from __future__ import annotations

import logging
from typing import Any, cast

from traincheck.packages import offered
from traincheck.relations.base import ProposerBase, RelationBase
from traincheck.relations.bounded import Bounded
from traincheck.relations.consistent import Consistent
from traincheck.relations.constant.relation import Constant
from traincheck.relations.contains.relation import Contains
from traincheck.relations.count.relation import Count
from traincheck.relations.distinct import Distinct
from traincheck.relations.initialization import Initialization
from traincheck.relations.input_output import InputOutput
from traincheck.relations.loss import Loss
from traincheck.relations.loss_terms import TermsOfLoss
from traincheck.relations.membership.relation import Membership
from traincheck.relations.order import Order
from traincheck.relations.periodic.relation import Periodic
from traincheck.relations.property import PropertyHolds
from traincheck.relations.restored.relation import Restored
from traincheck.relations.scales import Scales
from traincheck.relations.schedule import Schedule
from traincheck.relations.sharing import Sharing
from traincheck.schema.protocols import Relation


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


_logger = logging.getLogger(__name__)

BUILT_IN: tuple[Relation, ...] = (
    Contains(),
    Order(),
    InputOutput(),
    Periodic(),
    Count(),
    Initialization(),
    Bounded(),
    Constant(),
    Schedule(),
    Membership(),
    Restored(),
    Sharing(),
    Consistent(),
    Distinct(),
    Loss(),
    TermsOfLoss(),
    PropertyHolds(),
    Scales(),
)


def _all_relations() -> dict[str, Relation]:
    """By name. A package adds one with an entry point ``traincheck.relations``; ours come first."""
    table: dict[str, Relation] = {relation.name: relation for relation in BUILT_IN}
    for point in offered("traincheck.relations"):
        try:
            relation = _complete(point.load()())
        except Exception as error:  # another package's fault must not stop ours
            _logger.warning("relation %s of %s cannot be used: %r", point.name, point.dist, error)
            continue
        table.setdefault(relation.name, relation)
    return table


def _complete(relation: Any) -> Relation:
    if isinstance(relation, RelationBase):
        return cast(Relation, relation)
    return cast(Relation, PluginRelation(relation))


RELATIONS: dict[str, Relation] = _all_relations()
