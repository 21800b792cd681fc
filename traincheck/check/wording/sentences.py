"""Sentences of a finding and the placeholders in its texts; sentences on how a program ended."""

from __future__ import annotations

import re
import signal as signals
from collections.abc import Sequence

from traincheck.check.grouping.root_causes import RootCause
from traincheck.schema.findings import CheckInfo, Ending, Subject, Symptom, Topic, Violation
from traincheck.schema.places import short
from traincheck.schema.torch_api import LANDMARKS
from traincheck.schema.words import joined

_SHOWN_NAMES = 8
_BY_NUMBER = re.compile(r"\{([\w ]+)\|([\w ]+)\}")  # {is|are}: of one variable, and of several
_CALLED = {Symptom.MISSING_CALL: "does not call", Symptom.EXTRA_CALL: "calls"}


def side_effects_text(cause: RootCause) -> str:
    """Sentences on further effects of a cause, each after a space; empty if there are none."""
    names = {t.first.subject.variable for _, s, t in cause.explained if s is Symptom.FROZEN}
    found = sorted(name for name in names - cause.variables if name is not None)
    frozen = f" Beside that, {joined(found, _SHOWN_NAMES)} do not require grad." if found else ""
    return frozen + _called_text(cause) + _numbers_text(cause)


def _called_text(cause: RootCause) -> str:
    """Sentences on calls that only the reference makes, or only this run."""
    if cause.symptom is Symptom.EVAL_MODE:
        return ""  # the calls are made, but not counted in evaluation mode
    apis: dict[tuple[str, str], set[str]] = {}  # by the words before and after their names
    for _, symptom, count in cause.explained:
        api = count.first.subject.api
        if symptom is cause.symptom or symptom not in _CALLED or not api or _is_landmark(api):
            continue
        if count.first.topic is not Topic.ORDER:  # the call may only be at another place
            how = _how_often(symptom, count.first)
            apis.setdefault(how, set()).add(_short_api(api) or "")
    return "".join(
        f" Unlike the reference runs, this one {verb} {joined(sorted(names), 3)}{often}."
        for (verb, often), names in sorted(apis.items(), reverse=True)
    )


def _how_often(symptom: Symptom, violation: Violation) -> tuple[str, str]:
    """``calls`` and `` more often``, around the name of what is called."""
    if violation.topic is Topic.COUNT:  # the reference makes this call, too
        if symptom is Symptom.EXTRA_CALL:
            return "calls", " more often"
        if violation.measured:
            return "calls", " less often"
    return _CALLED[symptom], ""


def _numbers_text(cause: RootCause) -> str:
    """A sentence on a number that a missing or extra call changes."""
    if cause.symptom not in _CALLED:
        return ""
    values = [t for _, s, t in cause.explained if s is Symptom.WRONG_VALUE]
    if not values:
        return ""
    first = min(values, key=lambda count: count.key).first
    return f" With it, another claim breaks: {first.expected}; here it is {first.observed}."


def _is_landmark(api: str) -> bool:
    """Whether a call belongs to the training loop."""
    return api in LANDMARKS or api.startswith(("torch.optim.", "torch.amp.", "torch.autograd."))


def since(step: int, *, is_once: bool = False) -> str:
    """The steps of a violation, as text. is_once: in this step and in none after it."""
    if step < 0:
        return "before the first step"
    return f"in step {step}" if is_once else f"from step {step} on"


def message(head: Violation, info: CheckInfo, variables: Sequence[str], at: str) -> str:
    """The check's own sentence, with the names of all variables."""
    text = head.message.rstrip(".")
    names = joined(variables, _SHOWN_NAMES)
    if info.kind == "rule":
        return f"{at[:1].upper()}{at[1:]}: {with_all_names(text, head, variables)}."
    about = f" ({names})" if names else ""
    seen = head.observed or "it does not hold"
    return f"{text}. This held in every reference run. In this run, {at}: {seen}{about}."


def with_all_names(text: str, head: Violation, variables: Sequence[str]) -> str:
    """``text`` with the names of all variables in place of the first."""
    own = head.subject.variable
    return text.replace(own, joined(variables, _SHOWN_NAMES), 1) if own and variables else text


class Template:
    """Fills in the placeholders of a text.

    They are {variables}, {subject}, {step}, {since}, {where}, {optimizer}, {expected} and
    {observed}. {is|are} is chosen by the number of variables.
    """

    def __init__(
        self,
        variables: Sequence[str],
        head: Violation,
        subject: Subject,
        step: int,
        since: str,
        place: str | None,
    ) -> None:
        self._variables = variables
        self._subject = subject.module or _short_api(subject.api) or subject.variable or "the model"
        self._step, self._since = "0" if step < 0 else str(step), since
        # In a sentence the name of the file is enough; the evidence has its path.
        self._where = f" ({short(place)})" if place else ""
        self._observed = head.observed
        self._optimizer = head.optimizer or "the optimizer"
        self._expected = head.expected or "as the check says"

    def __call__(self, text: str, limit: int) -> str:
        names = joined(self._variables, limit) or self._subject
        number = 1 + (len(self._variables) > 1)
        # Not str.format: a wording may hold other braces.
        return (
            _BY_NUMBER.sub(lambda match: match[number], text)
            .replace("{variables}", names)
            .replace("{subject}", self._subject)
            .replace("{step}", self._step)
            .replace("{since}", self._since)
            .replace("{where}", self._where)
            .replace("{expected}", self._expected)
            .replace("{observed}", self._observed)
            .replace("{optimizer}", self._optimizer)
        )


def _short_api(api: str | None) -> str | None:
    """``torch.optim.Optimizer.step`` -> ``Optimizer.step``; ``autograd.grad``, as all have one."""
    if api is None:
        return None
    parts = api.split(".")
    is_long = len(parts) > 1 and (parts[-2][:1].isupper() or parts[-1] == "grad")
    return ".".join(parts[-2:]) if is_long else parts[-1]


_AGAIN = "run it again, and let it reach a training step"
_MORE_TIME = "give the program more time, so that it reaches a training step"
_SENDERS = {
    "SIGINT": ("Ctrl-C, or kill -INT", _AGAIN),
    "SIGQUIT": ("Ctrl-\\, or kill -QUIT", _AGAIN),
    "SIGHUP": ("the terminal or connection was closed", "start it with nohup, tmux or screen"),
    "SIGTERM": (
        "kill, timeout, a scheduler at its time limit, or a launcher whose other process failed",
        _MORE_TIME,
    ),
    "SIGKILL": (
        "kill -9, the kernel when memory ran out, or a scheduler at its limit",
        "look for 'Out of memory' in dmesg or the log of the scheduler; otherwise, "
        "give the program more time",
    ),
    "SIGXCPU": ("its limit of CPU time: ulimit -t", _MORE_TIME),
    "SIGALRM": ("a timer of the program", _MORE_TIME),
    "SIGPIPE": ("nothing reads its output any more", "keep the reader of its output running"),
}
_CRASHES = ("SIGSEGV", "SIGABRT", "SIGBUS", "SIGFPE", "SIGILL")
_SHELL = 128  # a shell ends with 128+n where signal n ended its command


def ending(signal: str | None, status: int | None, interrupted: str | None = None) -> Ending | None:
    """How a program failed; None if it ended with status 0, or is not over.

    Args:
        signal: name of the signal that ended it.
        status: its exit status.
        interrupted: the signal that the launcher received before, or "--halt".
    """
    if interrupted == "--halt":
        return Ending(text="was stopped by traincheck", fix="correct the error that stopped it")
    if signal:
        return _signalled(signal, f"was ended by {signal}")
    if interrupted:
        return _signalled(
            interrupted, f"received {interrupted} and ended with exit status {status}"
        )
    if not status:
        return None
    text = f"ended with exit status {status}"
    number = status - _SHELL
    if number in {one.value for one in signals.Signals}:
        name = signals.Signals(number).name
        return _signalled(name, f"{text}, that of a command ended by {name}")
    return Ending(text=text)


def _signalled(name: str, text: str) -> Ending:
    if name in _CRASHES:
        return Ending(
            text=text,
            sender="a crash in compiled code",
            fix="run it with python -X faulthandler, which shows the Python line of the crash",
        )
    sender, fix = _SENDERS.get(name, ("sent by another process or by its own code", _AGAIN))
    return Ending(text=text, sender=sender, fix=fix)
