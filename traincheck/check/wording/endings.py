"""Sentences on how a program ended: the signal or the status, who may have sent it, a next step."""

from __future__ import annotations

import signal as signals

from traincheck.schema.findings import Ending

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
