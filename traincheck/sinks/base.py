"""The base of receivers by its older name."""

from traincheck.receivers.base import Message
from traincheck.receivers.base import Receiver as Sink

__all__ = ["Message", "Sink"]
