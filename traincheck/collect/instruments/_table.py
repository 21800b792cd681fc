"""All instruments, in the order in which they are installed."""

from __future__ import annotations

from traincheck.collect.instruments._base import Instrument
from traincheck.collect.instruments.autograd import Autograd
from traincheck.collect.instruments.functional import Functional
from traincheck.collect.instruments.modules import Modules
from traincheck.collect.instruments.optimizers import Optimizers

INSTRUMENTS: tuple[type[Instrument], ...] = (Modules, Functional, Optimizers, Autograd)
