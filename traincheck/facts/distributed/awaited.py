"""The numbers of steps without an update, or a gradient, that show that one is missing."""

from __future__ import annotations

# Methods that combine the gradients of several tasks clear and compute them once per task.
FIRST = 10  # consecutive steps with gradients, before the first update
# After an update. Saliency, Fisher information and similar methods compute gradients that are not
# applied. So many steps are needed, at the end of the run or before another update.
LATER_AT_END, LATER = 30, 300
UNGRAPHED = 300  # steps: layers may run without a graph until the head has learned
STUCK = 3  # steps: one may round the update of a parameter to zero, or a wrapper may skip it
ROUTED = 8  # consecutive steps that an expert of a mixture may go without a gradient
