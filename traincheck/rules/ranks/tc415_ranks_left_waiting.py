"""A rank died, hung or skipped a collective, and others wait for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from traincheck.rules.base.rule import BuiltInRule, fresh
from traincheck.rules.ranks.waiting import Member, Wait, described, missing_in, place_of, waits
from traincheck.schema.claims import Needs
from traincheck.schema.events import CallEvent, CollectiveEvent, Event, MarkEvent, StepEvent
from traincheck.schema.findings import Subject, Symptom, Violation
from traincheck.schema.marks import Marks
from traincheck.schema.torch_api import DDP_INIT, Families
from traincheck.schema.words import listed

_SECOND_NS = 1e9
_HUNG_S = 60.0
_DDP = "torch.nn.parallel.DistributedDataParallel"
_BY_USER = frozenset({"KeyboardInterrupt", "SystemExit", "SignalException"})


class RanksLeftWaiting(BuiltInRule, code="TC415", severity="error"):
    """ranks-left-waiting: a rank died, hung or skipped a collective that others wait in.

    What it checks:
        Every rank of a process group enters the collectives that the other ranks enter. The check
        searches for calls that were entered and did not return. It runs when the job ends with a
        failure, and when ranks record nothing for `--stall-timeout` seconds. The gradient exchange
        of DistributedDataParallel counts as a collective, and happens inside backward.

    Why it matters:
        The waiting ranks give no message, or after many minutes an error about a lost connection.
        The cause is on another rank.

    Fires on:
        - A rank that raises, is killed, ends early or sleeps while others wait for it.
        - A collective that one rank skips.
        - A job that dies in a collective.

    Stays quiet on:
        - A slow rank, e.g. one that evaluates or writes a checkpoint for a long time. A live
          finding after the timeout is withdrawn when the rank continues, and `--halt` ignores it.
        - Ranks that end earlier while no collective is pending.
        - A job that ends with status 0.
        - A job that the user interrupts.
        - Calls in unrecorded steps.

    Fix:
        Fix the rank that is named. Issue collectives on all ranks or on none.

    Source:
        https://github.com/pytorch/pytorch/issues/76287
    """

    title = "Ranks wait for a rank that does not join"
    likely_cause = "A rank died, hung or took a branch without the collective: {observed}."
    fix = "Fix the rank that is named, and issue collectives on all ranks or on none."
    needs = Needs(
        calls=frozenset({DDP_INIT, Families.BACKWARD, Families.OPTIMIZER_STEP}),
        kinds=frozenset({"collective", "mark", "step"}),
    )
    scope = "run"
    _members: dict[int, Member] = fresh(dict)
    _stall: Violation | None = None
    _stalled_until_ns = 0.0

    # One finding a run: everything after a hang follows from it. A silent rank may only be slow, so
    # that violation is withdrawn when the rank continues.
    def observe(self, event: Event) -> Sequence[Violation]:
        if self.is_over:
            return ()
        if isinstance(event, MarkEvent):
            if event.text == Marks.STALLED:
                # A rank is silent. Report it if the ranks that wait for it are silent too.
                member = self._members.get(event.rank)
                seconds = event.data.get("silent_s")
                if member is None or not isinstance(seconds, (int, float)):
                    return ()
                member.silent_s = max(float(seconds), 1e-9)
                if self._stall is not None:
                    return ()
                for wait in waits(self._members, is_over=False):
                    if all(self._members[rank].silent_s for rank in wait.ranks):
                        missing = missing_in(wait, self._members)
                        still = [m for m in missing if m.silent_s or m.ended is not None]
                        if still and len(still) == len(missing):
                            return self._report_stall(wait, _culprit(still))
                return ()
            if event.text == Marks.RUN_ENDED:
                return () if self._stall else self._ended(event)
        member = self._member(event)
        if member is not None:
            member.observe(event)
            self.triggered += isinstance(event, CollectiveEvent) and len(self._members) > 1
            if self._stall is not None and self._goes_on(event, self._stall):
                found, self._stall = self._stall, None
                return [replace(found, withdrawn=True)]
        return ()

    def _goes_on(self, event: Event, stall: Violation) -> bool:
        """Whether the silent rank did something after it was reported, other than ending.

        Events that it writes at its end can be older than the report.
        """
        if event.rank != stall.rank or event.time_ns < self._stalled_until_ns:
            return False
        is_end = isinstance(event, StepEvent) or (
            isinstance(event, MarkEvent) and event.text == Marks.ENDED
        )
        return not (is_end or getattr(event, "raised", None) or getattr(event, "exception", None))

    def _member(self, event: Event) -> Member | None:
        """The process of the rank; None for one that takes no part, e.g. a DataLoader worker."""
        pid = event.stream.partition("-")[0]
        member = self._members.get(event.rank)
        if member is None or member.pid != pid:
            takes_part = isinstance(event, CollectiveEvent) or (
                isinstance(event, MarkEvent)
                and event.text in (Marks.PROCESS_GROUP, Marks.COLLECTIVE_ENTERED)
            )
            if not takes_part:
                return None
            member = self._members[event.rank] = Member(event.rank, pid)
        return member

    def _report_stall(self, wait: Wait, culprit: Member) -> Sequence[Violation]:
        """Report the stall; provisionally if the rank is alive and may continue."""
        found = self._violation(wait, culprit)
        if culprit.ended is not None:
            self.is_over = True
            return [found]
        self._stall = replace(found, provisional=True)
        self._stalled_until_ns = culprit.last_ns + culprit.silent_s * _SECOND_NS
        return [self._stall]

    def _ended(self, end: MarkEvent) -> Sequence[Violation]:
        """The job is over. Only a failed job can have left ranks waiting."""
        if not end.data.get("exit_status"):
            return ()
        last_ns = max((member.last_ns for member in self._members.values()), default=0)
        silent_s = (end.time_ns - last_ns) / _SECOND_NS if end.time_ns else 0.0
        is_hung = silent_s >= _HUNG_S
        for member in self._members.values():
            member.silent_s = silent_s if is_hung and member.ended is None else 0.0
        found = list(waits(self._members, is_over=True))
        for wait in found:
            missing = missing_in(wait, self._members)
            if missing:
                culprit = _culprit(missing)
                if not end.data.get("interrupted") or is_hung or _has_failed(culprit):
                    return self._report(wait, culprit)
        is_seen = not any(member.is_blind for member in self._members.values())
        if found and is_seen and not end.data.get("interrupted") and not _is_out_of_order(found):
            # All ranks had entered the call: name a rank that was killed inside it, if known.
            wait = found[0]
            killed = [m for m in map(self._members.__getitem__, wait.ranks) if m.ended is None]
            is_one_of_them = 0 < len(killed) < len(wait.ranks)
            return self._report(wait, _culprit(killed) if is_one_of_them else None)
        return ()

    def _report(self, wait: Wait, culprit: Member | None) -> Sequence[Violation]:
        self.is_over = True
        return [self._violation(wait, culprit)]

    def _violation(self, wait: Wait, culprit: Member | None) -> Violation:
        event, ranks = wait.event, [f"rank {rank}" for rank in wait.ranks]
        others = [name for name in ranks if culprit is None or name != f"rank {culprit.rank}"]
        verb = "waits" if len(others) == 1 else "wait"
        waiting = f"{listed(others or ranks)} {verb} in {wait.what}{wait.where}"
        if culprit is None:
            state, title = f"no rank returned from {wait.what}", f"The job died in {wait.what}"
            cause = "A rank failed in the collective, or the connection between ranks was lost."
            fix = "Read the first error of each rank. A collective that times out shows no cause."
        else:
            state, title, cause, fix = described(culprit, wait)
        api = event.op if isinstance(event, CollectiveEvent) else ""
        evidence = [event] if culprit is None else [_place(culprit), event]
        return Violation(
            check_id=self.code,
            step=event.step,
            rank=wait.ranks[0] if culprit is None else culprit.rank,
            stage=event.stage,
            subject=Subject(api=f"torch.distributed.{api}" if api else _DDP),
            symptom=Symptom.OUT_OF_STEP,
            message=f"{state}; {waiting}",
            expected=f"every rank enters {wait.what}{wait.where}",
            observed=f"{state}; {waiting}",
            evidence=tuple(e for e in evidence if e is not None),
            title=title,
            likely_cause=cause,
            fix=fix,
        )


def _place(member: Member) -> Event | None:
    """The event that shows the last position of a rank."""
    has_place = member.exception and place_of(member.ended)
    return member.ended if has_place else member.last


def _culprit(members: Sequence[Member]) -> Member:
    """The likely cause: a rank that raised without waiting, was killed, ended, or is silent."""

    def order(member: Member) -> tuple[bool, bool, bool, int]:
        is_effect = member.raised is not None or bool(member.inside)
        return (not _has_failed(member), is_effect, member.ended is not None, member.rank)

    return min(members, key=order)


def _has_failed(member: Member) -> bool:
    """Whether its own exception ended it."""
    return bool(member.exception) and member.exception not in _BY_USER and member.raised is None


def _is_out_of_order(found: Sequence[Wait]) -> bool:
    """Whether ranks wait in different operations that should match, which TC410 reports."""
    ops = {
        (wait.group, wait.number, wait.what)
        for wait in found
        if not isinstance(wait.event, CallEvent)
    }
    return len({what for _, _, what in ops}) > 1
