"""Programs that do ordinary things to a model, and must go on unharmed."""

from __future__ import annotations

import copy
import io

import torch

from benchmarks.torch_audit_cases.audited import Corrupted
from benchmarks.torch_audit_cases.case import (
    AUTOPATCH,
    HOST,
    Hands,
    case,
    classify,
    mlp,
    rows,
    sgd,
)


@case("copied-model", "deepcopy() for a moving average", checks="", kind=HOST, style=AUTOPATCH)
def copied(hands: Hands) -> None:
    model = mlp()
    optimizer = sgd(model)
    hands.begin(model, optimizer)
    average = copy.deepcopy(model)
    for parameter in average.parameters():
        torch.nn.init.zeros_(parameter)
    for batch in rows():
        optimizer.zero_grad()
        hands.backward(classify(hands.forward(model, batch[0]), batch))
        hands.step(optimizer)
        with torch.no_grad():
            if average(batch[0]).any():
                raise Corrupted("the copy of zeros computes what the model computes")
    hands.end()


@case("saved-model", "torch.save(model)", checks="", kind=HOST, style=AUTOPATCH)
def saved(hands: Hands) -> None:
    model = mlp()
    optimizer = sgd(model)
    hands.begin(model, optimizer)
    for batch in rows():
        optimizer.zero_grad()
        hands.backward(classify(hands.forward(model, batch[0]), batch))
        hands.step(optimizer)
        torch.save(model, io.BytesIO())
    hands.end()


@case("late-scheduler", "a scheduler made after the tool", checks="", kind=HOST, style=AUTOPATCH)
def late_scheduler(hands: Hands) -> None:
    model = mlp()
    optimizer = sgd(model)
    hands.begin(model, optimizer)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 4)
    for batch in rows():
        optimizer.zero_grad()
        hands.backward(classify(hands.forward(model, batch[0]), batch))
        hands.step(optimizer)
        scheduler.step()
    hands.end()
