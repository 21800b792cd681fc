"""The relation *scales*: numbers of a whole run, compared with those of the reference runs."""

from __future__ import annotations

from traincheck.relations.learned import Learned
from traincheck.relations.scales.quantities import HIGH, LOW, QUANTITIES
from traincheck.schema.claims import Hypothesis


class Scales(Learned):
    """A number of a run is near that of the reference runs.

    Claims:
        A limit of one of these, for one program:
        - The sum of the losses passed to backward() before the first update.
        - The norm of the gradients of the first update.
        - The last learning rate, divided by the largest one.
        - The length of a schedule, divided by the number of updates, if it is 1.

    Example:
        ``In train.py, the losses passed to backward() before the first update sum to at most 7.1
        (32 rows of about 16 values, 1 backward pass, 963 parameters).`` It breaks when the loss is
        a sum instead of a mean.

    Evidence:
        - A run is ten examples.
        - Limits of a loss or gradient are 3 times as wide as the first four readings of all
          reference runs, or as much wider as the largest of these is larger than the smallest.
        - Limits of a rate are 3 times and 5 % of the peak as wide, those of a length 1.1 times.
        - A run breaks a limit of a loss or gradient if all its first four readings do.
        - Only runs with the same number of rows in a batch, backward passes, parameters and ranks
          are compared; for schedules, with the same number of updates.

    Chance:
        A coin for each example.

    Not claimed:
        - Losses of runs that resume or start from a file, and losses scaled for half precision.
        - Rates that follow a metric, e.g. of ReduceLROnPlateau.
        - Losses that reach zero.
        - Weights of terms of a loss (see *loss_terms*), and steps of a scheduler for each update
          (see *count*).
    """

    name = "scales"
    term = "scale"
    rows = QUANTITIES

    def implies(self, claim: Hypothesis, other: Hypothesis) -> bool:
        """A narrower limit of the same number implies a wider one."""
        mine, its = dict(claim.params), dict(other.params)
        if LOW in mine and LOW in its:
            is_narrower = mine.pop(LOW) >= its.pop(LOW)
        else:
            is_narrower = mine.pop(HIGH, 0.0) <= its.pop(HIGH, 0.0)
        return claim.relation == other.relation and mine == its and is_narrower
