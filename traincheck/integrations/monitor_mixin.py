"""Modules that report metrics of their own while they are called."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from traincheck.integrations.monitor_results import MonitorResults

_LINK = "_traincheck_monitor"


class _Link:
    """A monitor in the attributes of a module. Copies and pickles of the module have none."""

    def __init__(
        self, monitor: MonitorResults | None = None, *, is_reference: bool = False
    ) -> None:
        self.monitor, self.is_reference = monitor, is_reference

    def __deepcopy__(self, memo: Any) -> _Link:
        return _Link()

    def __reduce__(self) -> Any:
        return (_Link, ())


class MonitorMixin:
    """A base of modules that use the monitor in their forward, when there is one.

    For example::

    class Layer(nn.Module, MonitorMixin):
        def forward(self, x):
            if self.is_monitoring:
                self.get_module_monitor().log_tensor("my_statistic", x.norm(dim=-1))
    """

    def set_module_monitor(
        self, monitor: MonitorResults | None = None, is_reference_module: bool = False
    ) -> None:
        """Called by the monitor of the model."""
        self.__dict__[_LINK] = _Link(monitor, is_reference=is_reference_module)

    def get_module_monitor(self) -> MonitorResults | None:
        """The monitor, or None."""
        link = self.__dict__.get(_LINK)
        return None if link is None else link.monitor

    @property
    def is_reference_module(self) -> bool:
        """Whether the module is part of the reference of the monitor."""
        link = self.__dict__.get(_LINK)
        return link is not None and link.is_reference

    @property
    def is_monitoring(self) -> bool:
        """Whether the present step is measured."""
        monitor = self.get_module_monitor()
        return monitor is not None and monitor.is_monitoring()
