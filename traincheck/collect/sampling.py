"""Which steps are recorded. Decides from the step number alone, so that all ranks decide alike."""

from __future__ import annotations


class EveryNth:
    """The first ``warmup`` steps, then those whose number is a multiple of ``every``."""

    def __init__(self, every: int = 1, warmup: int = 0) -> None:
        self.every = every
        self.warmup = warmup

    def wants(self, step: int) -> bool:
        return step < self.warmup or step % self.every == 0
