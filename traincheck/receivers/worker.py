"""The process of one receiver: takes messages from stdin, one JSON document a line, and replies.

Each receiver has a process, so that libraries which print, hang or end it do not reach the check.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import sys
import threading
from importlib.metadata import EntryPoint
from typing import Any, BinaryIO, TextIO

from traincheck.errors import TraincheckError
from traincheck.receivers.base import Receiver, load_receiver

_LOW_PRIORITY = 10
_PATIENCE_S = 10.0  # for a receiver whose command has ended
_TOLD = ("finding", "withdrawn", "progress", "report")


def main() -> None:
    """Serve until a message ``close`` or the end of stdin."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the command closes the receiver
    with contextlib.suppress(OSError):
        os.nice(_LOW_PRIORITY)
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # libraries that print
    messages: queue.SimpleQueue[Any] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(sys.stdin.buffer, messages), daemon=True).start()
    _serve(messages, replies)
    replies.close()


def _read(stream: BinaryIO, messages: queue.SimpleQueue[Any]) -> None:
    """Pass the messages on. If the command ends without ``close``, so does this process."""
    message: dict[str, Any] = {}
    for line in stream:
        message = json.loads(line)
        messages.put(message)
    if message.get("kind") != "close":
        messages.put({"kind": "close"})
        threading.Timer(_PATIENCE_S, os._exit, (1,)).start()


def _serve(messages: queue.SimpleQueue[Any], replies: TextIO) -> None:
    receiver: Receiver | None = None
    while True:
        message = messages.get()
        reply: dict[str, str] = {}
        try:
            if message["kind"] == "open":
                settings = {key: _expanded(value) for key, value in message["settings"].items()}
                entry = EntryPoint("receiver", message["entry"], "traincheck.sinks")
                receiver = load_receiver(entry)(**settings)
            elif message["kind"] in _TOLD and receiver is not None:
                getattr(receiver, message["kind"])(message)
            elif receiver is not None:
                reply = {"note": receiver.close()}
        except Exception as error:  # whatever a library may raise: the next message is tried, too
            reply = {"error": _said(error)}
        try:
            replies.write(f"{json.dumps(reply)}\n")
            replies.flush()
        except OSError:  # nobody waits for it
            return
        if message["kind"] == "close":
            return


def _expanded(value: Any) -> Any:
    """The variable of the environment that a setting names."""
    if not (isinstance(value, str) and value.startswith("$")):
        return value
    name = value[1:].strip("{}")
    if not os.environ.get(name):
        raise LookupError(f"the environment variable {name} is not set")
    return os.environ[name]


def _said(error: Exception) -> str:
    if isinstance(error, TraincheckError):
        return f"{error.message}; fix: {error.fix}" if error.fix else error.message
    text = str(error).strip().partition("\n")[0]
    if isinstance(error, OSError | LookupError) and text and getattr(error, "errno", None) is None:
        return text  # a sentence of a receiver
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
