"""The base of instruments: replace attributes, remember the originals, restore them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, ClassVar

from traincheck.collect.listeners import Listener
from traincheck.collect.moments.replacements import Replacement, replaced
from traincheck.collect.observers.base import Hook, Observer
from traincheck.collect.observers.registry import OBSERVERS
from traincheck.schema.claims import without_sampling
from traincheck.schema.instruments import FEEDS, Feed

if TYPE_CHECKING:
    from traincheck.collect.context import Recorder


class Instrument(Listener):
    """Makes one family of APIs emit events. Subclasses define ``name`` and ``install``.

    feed: what it records, declared in schema/instruments.py under its name; in selective collection
    it is installed only when a check needs some of that.
    always: also installed if its calls are not recorded, because it counts steps.
    is_seen_by_transforms: replaces functions that TorchScript or fx may find.
    observers_first: its observers are installed before it.
    """

    name: ClassVar[str]
    feed: ClassVar[Feed]
    always: ClassVar[bool] = False
    is_seen_by_transforms: ClassVar[bool] = False
    observers_first: ClassVar[bool] = False

    def __init_subclass__(cls) -> None:
        cls.feed = FEEDS[cls.name]

    def __init__(self, session: Recorder) -> None:
        super().__init__()
        self.session = session
        self._layers: list[Callable[[], Replacement | None]] = []
        self._installed: list[Observer] = []

    @property
    def replaced(self) -> list[Replacement]:
        """Its replacements, the first one first."""
        return [layer for found in self._layers if (layer := found()) is not None]

    def is_wanted(self) -> bool:
        """Whether any requested record of this session needs this instrument."""
        needs, feed = self.session.needs, self.feed
        if needs is None or self.always:
            return True
        return (
            any(family in needs.calls for family in feed.families)
            or not feed.kinds.isdisjoint(needs.kinds)
            or any(map(feed.has_state, without_sampling(needs.states)))
        )

    def wants_call(self, api: str, family: str | None = None) -> bool:
        """Whether calls of ``api`` are recorded."""
        needs = self.session.needs
        return needs is None or needs.asks_for(api) or family in needs.calls

    def install(self) -> None:
        """Replace the originals. Called once."""
        raise AssertionError(f"{type(self).__name__} does not say what it installs")

    def observers(self, hook: Hook) -> list[Observer]:
        """New observers of the table that it serves at this hook, where a check needs them."""
        made = (
            observer(self.session)
            for observer in OBSERVERS
            if observer.hook is hook and observer.instrument() == self.name
        )
        return [observer for observer in made if observer.is_wanted]

    def install_observers(self) -> None:
        """Let the observers in that replace functions, or listen to them."""
        for observer in self.observers(Hook.ON_INSTALL):
            try:
                observer.install(self)
                self._installed.append(observer)
            except Exception as error:  # another torch than we know: go without this observer
                self.session.fault(observer.install, error)

    def remove(self) -> None:
        """Restore the originals, last replaced first, and listen no more."""
        self.mute()
        while self._installed:
            observer = self._installed.pop()
            observer.mute()
            try:
                observer.remove()
            except Exception as error:  # the originals must come back whatever we got wrong
                self.session.fault(observer.remove, error)
        ours = self.replaced
        self._layers.clear()
        while ours:
            ours.pop().take_out()

    @contextlib.contextmanager
    def suspended(self) -> Iterator[None]:
        """Restore the originals temporarily, for code that inspects functions."""
        ours = self.replaced
        for replacement in reversed(ours):
            replacement.take_out()
        try:
            yield
        finally:
            if self._layers:  # else a fault has removed the instrument
                for replacement in ours:
                    replacement.put_back()

    def set(
        self, holder: Any, attribute: str, value: Any, stored: Any, *, is_of_program: bool = False
    ) -> None:
        """Set ``holder.attribute``. stored: what to restore. is_of_program: as in `replace`."""
        layer = Replacement(self, holder, attribute, stored)
        self._layers.append(layer.put_in(value, is_of_program=is_of_program))

    def replace(
        self,
        holder: Any,
        attribute: str,
        make: Callable[[Callable[..., Any]], Callable[..., Any]],
        *,
        idles: bool = False,
        is_rare: bool = False,
        skip_inner: bool = False,
        is_of_program: bool = False,
    ) -> None:
        """Set ``holder.attribute`` to ``make(original)``, under the original's name and docs.

        idles: the replacement only calls the original while nothing is recorded. is_rare: also in
        steps without calls within models. skip_inner: also while a recorded function runs.
        is_of_program: the holder may be freed while this instrument is there.
        """
        layer = replaced(
            self,
            holder,
            attribute,
            make,
            self.session if idles else None,
            is_rare=is_rare,
            skip_inner=skip_inner,
            is_of_program=is_of_program,
        )
        self._layers.append(layer)
