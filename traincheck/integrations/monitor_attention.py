"""Functions that modules and loops of torch-module-monitor call beside the monitor."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from traincheck.handlers import give_back

if TYPE_CHECKING:
    from traincheck.integrations.monitor import Monitor


def monitor_scaled_dot_product_attention(  # noqa: PLR0913, PLR0917  # as torch has them
    monitor: Monitor,
    module: Any,
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    activation: Any = None,
    is_reference: bool = False,
) -> None:
    """Measure one call of ``scaled_dot_product_attention`` by head.

    The metrics of activations run on query, key, value and ``activation`` of each head, under
    ``{module}.head_0.query``, and ``attention_entropy/{module}.head_0`` is the mean entropy of its
    rows in nats, without dropout. Rows that attend to nothing are left out.

    Args:
        monitor: the monitor; nothing is done while it does not measure.
        module: the calling module, or its name.
        query: (..., heads, positions, features); of three dimensions, the first is the batch.
        key: as many features as the query.
        value: as many positions as the key.
        attn_mask: bool or additive; None for none.
        dropout_p: not used.
        is_causal: whether later positions are left out.
        scale: of the scores; None for one over the root of the number of features.
        enable_gqa: whether several heads of the query share one of the key.
        activation: what it returned.
        is_reference: whether the module belongs to the reference.
    """
    try:
        monitor.measure_attention(
            module,
            (query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa),
            activation,
            is_reference=is_reference,
        )
    except Exception as error:  # training must go on whatever we got wrong
        give_back(error)
        monitor.note_fault(error)


class RefinedCoordinateCheck:
    """The refined coordinate check of each layer, compared with the reference of a monitor.

    Args:
        monitor: has a model and a reference.

    Raises:
        ValueError: it has not.
    """

    def __init__(self, monitor: Monitor) -> None:
        if monitor.module is None:
            raise ValueError(
                "Set the module to monitor before setting up the refined coordinate check."
            )
        if monitor.reference_module is None:
            raise ValueError(
                "Set the reference module before setting up the refined coordinate check."
            )
        self.monitor = monitor
        monitor.begin_coordinate_check()

    def refined_coordinate_check(self) -> None:
        """Log the terms of the forward before. Does nothing in steps that are not measured."""
        self.monitor.log_coordinate_check()
