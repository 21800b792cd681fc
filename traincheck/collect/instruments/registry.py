"""All instruments, in the order in which they are installed."""

from __future__ import annotations

from traincheck.collect.instruments.autograd import Autograd
from traincheck.collect.instruments.base import Instrument
from traincheck.collect.instruments.checkpoint import Checkpoint
from traincheck.collect.instruments.code_capture import Transforms
from traincheck.collect.instruments.comparison import Checksums, Comparison
from traincheck.collect.instruments.data import Data
from traincheck.collect.instruments.distributed import Distributed
from traincheck.collect.instruments.functional import Functional, Reshapes
from traincheck.collect.instruments.gradients import Amp, Clipping
from traincheck.collect.instruments.modules import Modes, Modules
from traincheck.collect.instruments.monitor import Monitor
from traincheck.collect.instruments.optimizers import Optimizers
from traincheck.collect.instruments.packages import Packages
from traincheck.collect.instruments.probes import Probes
from traincheck.collect.instruments.python_warnings import PythonWarnings
from traincheck.collect.instruments.rng import RandomState, Rng
from traincheck.collect.instruments.schedulers import Schedulers

INSTRUMENTS: tuple[type[Instrument], ...] = (
    Probes,  # inside the wrapper of modules, which begins the step
    Monitor,  # inside the wrapper of modules, which begins the step
    Modules,
    Functional,
    Reshapes,
    Optimizers,
    Autograd,
    Amp,
    Schedulers,
    Clipping,
    Modes,
    Data,
    Rng,
    RandomState,
    Checkpoint,
    Distributed,
    PythonWarnings,
    Packages,
    Comparison,
    Checksums,  # outside the wrapper of data, which begins the step
    Transforms,
)
