"""The texts of TC415 about a rank for which others wait."""

from __future__ import annotations

from traincheck.rules.ranks.waiting import Member, Wait, place_of
from traincheck.schema.events import CollectiveEvent


def described(member: Member, wait: Wait) -> tuple[str, str, str, str]:
    """The action of a rank in place of the call, a title, the likely cause, and the fix."""
    rank, joins = f"Rank {member.rank}", f"{wait.what}{wait.where}"
    if member.exception:
        state = f"raised {member.exception}{place_of(member.ended)}"
        cause = f"{rank} failed. The other ranks cannot continue without it."
        fix = f"Fix the {member.exception} of rank {member.rank}{place_of(member.ended)}."
        return f"rank {member.rank} {state}", f"{rank} raised, and others wait for it", cause, fix
    last = _last(member)
    if member.ended is not None:
        cause = f"{rank} took a branch without {joins}, or ended its loop earlier."
        fix = f"Let rank {member.rank} enter {joins} too, or no rank."
        return (
            f"rank {member.rank} ended{last}",
            f"{rank} ended, and others wait for it",
            cause,
            fix,
        )
    inside = next(iter(member.inside.values()), None)
    if inside is not None and (inside.group, inside.number) != (wait.group, wait.number):
        state = f"rank {member.rank} waits in {inside.op}{place_of(inside)}"
        cause = f"{rank} skipped {joins}."
        fix = f"Let rank {member.rank} enter {joins} too, or no rank."
        return state, f"{rank} waits in another collective", cause, fix
    if member.silent_s:
        state = f"rank {member.rank} has recorded nothing for {member.silent_s:,.0f} s{last}"
        cause = f"{rank} hangs, is slower than the timeout, or skipped {joins}."
        fix = f"Inspect rank {member.rank}: py-spy dump --pid {member.pid.lstrip('p')}. "
        fix += "Raise --stall-timeout if the rank is only slow."
        return state, f"{rank} is silent, and others wait for it", cause, fix
    state = f"rank {member.rank} stopped without an exception and without a regular end{last}"
    cause = f"{rank} was killed, e.g. for lack of memory, or hung until the job was ended."
    fix = f"Find the reason in the log of the system or of the launcher: rank {member.rank}."
    return state, f"{rank} died or hung, and others wait for it", cause, fix


def _last(member: Member) -> str:
    """The last recorded call of a rank and its line, as the end of a sentence."""
    if member.backward is not None and member.computes:
        return f"; it computes gradients in its backward pass{place_of(member.backward)}"
    event = member.last
    if event is None:
        return ""
    name = event.op if isinstance(event, CollectiveEvent) else getattr(event, "api", "a call")
    short = ".".join(str(name).split(".")[-2:])
    step = "" if event.step is None else f" of step {event.step}"
    return f"; its last recorded call is {short}{place_of(event)}{step}"
