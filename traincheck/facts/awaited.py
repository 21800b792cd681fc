"""How many steps without an update, or a gradient, show that one is missing."""

from __future__ import annotations

# Methods that combine the gradients of several tasks clear and compute them once for each task.
FIRST = 10  # steps in a row in which gradients come, and none has had an update yet
# After an update: saliency, Fisher information and the like compute gradients that none is to
# apply. It takes as many steps when the run ends without another update, or before it ends.
LATER_AT_END, LATER = 30, 300
UNGRAPHED = 300  # steps: layers may run without a graph until the head has learned
STUCK = 3  # steps: one may round the update of a parameter away, or a wrapper skip it
ROUTED = 8  # steps in a row that an expert of a mixture may go without
