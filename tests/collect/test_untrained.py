"""Models that are called without grad, in training mode: whether their weights change."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.func import functional_call, stack_module_state, vmap

from tests.collect.recording import recording
from traincheck.schema.claims import USE_SCHEDULE, Needs
from traincheck.schema.marks import Marks
from traincheck.schema.observations.models import (
    AuxiliaryEval,
    AuxiliaryInitialNorms,
    AuxiliaryTraining,
)

NEEDS = Needs(states=frozenset({"parameter@untrained"}), kinds=frozenset({"mark"}))


def net():
    return nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 2))


def train(teacher, after=lambda student, teacher: None, *, steps=12, student=None):
    student = student or net()
    optimizer = torch.optim.SGD(student.parameters(), lr=0.1)
    for _ in range(steps):
        x = torch.randn(5, 4)
        with torch.no_grad():
            target = teacher(x)
            teacher(x)
        optimizer.zero_grad()
        nn.functional.mse_loss(student(x), target).backward()
        optimizer.step()
        after(student, teacher)
    return student


def averages(student, teacher):
    for theirs, ours in zip(teacher.parameters(), student.parameters(), strict=True):
        theirs.data.lerp_(ours.data, 0.1)


def copies(student, teacher):
    teacher.load_state_dict(student.state_dict())


def test_weights_that_rest_and_when_is_looked(tmp_path):
    with recording(tmp_path / "run", needs=NEEDS) as run:
        train(net().requires_grad_(False))
    marks = run.marks(AuxiliaryTraining.text)
    assert [mark.step for mark in marks] == [*range(8), USE_SCHEDULE.every]
    assert len({mark.data["weights"] for mark in marks}) == 1


@pytest.mark.parametrize("move", [averages, copies])
def test_weights_that_move(tmp_path, move):
    with recording(tmp_path / "run", needs=NEEDS) as run:
        train(net().requires_grad_(False), move)
    marks = run.marks(AuxiliaryTraining.text)
    assert len({mark.data["weights"] for mark in marks}) == len(marks) == 9


def test_a_model_in_a_model_is_told_by_its_path(tmp_path):
    with recording(tmp_path / "run", needs=NEEDS) as run:
        both = nn.ModuleDict({"teacher": net(), "student": net()})
        train(both["teacher"], student=both["student"])
    assert {mark.data["model"] for mark in run.marks(AuxiliaryTraining.text)} == {
        "ModuleDict.teacher"
    }


def test_nothing_of_others(tmp_path):
    """Trained, without parameters, or with some that are yet to come."""
    student = net()
    with recording(tmp_path / "run", needs=NEEDS) as run:
        train(student, student=student)
        train(nn.Dropout(0.5), student=nn.Linear(4, 4))
        train(nn.LazyLinear(2), steps=1)
    assert run.marks(AuxiliaryTraining.text) == run.marks(AuxiliaryEval.text) == []


@pytest.mark.parametrize("move", [averages, copies, lambda student, teacher: None])
def test_in_evaluation_mode(tmp_path, move):
    with recording(tmp_path / "run", needs=NEEDS) as run:
        train(net().requires_grad_(False).eval(), move)
    marks = run.marks(AuxiliaryEval.text)
    assert run.marks(AuxiliaryTraining.text) == []
    assert [mark.step for mark in marks] == [*range(8), USE_SCHEDULE.every]
    assert len({mark.data["weights"] for mark in marks}) == (9 if move in (averages, copies) else 1)


def normed():
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 2)).eval()


def test_batch_norms_that_never_saw_a_batch(tmp_path):
    copied, source = normed(), normed().train()
    with recording(tmp_path / "run", needs=NEEDS) as run:
        train(copied, averages, student=source)
        train(source.eval(), student=net())  # has seen some
    marks = run.marks(AuxiliaryInitialNorms.text)
    assert {mark.data["model"] for mark in marks} == {"Sequential"}
    assert len({mark.data["weights"] for mark in marks}) == len(marks) == 9


def test_batch_norms_that_cannot_be_looked_at(tmp_path):
    """Of several models at once, and of none that holds numbers."""
    models = [normed() for _ in range(3)]
    parameters, buffers = stack_module_state(models)
    frame = copy.deepcopy(models[0]).to("meta")

    def teach(parameters, buffers, x):
        return functional_call(frame, (parameters, buffers), (x,))

    def teacher(x):
        frame(x.to("meta"))
        return vmap(teach, in_dims=(0, 0, None))(parameters, buffers, x).mean(0)

    with recording(tmp_path / "run", needs=NEEDS) as run:
        train(teacher)
    assert run.marks(AuxiliaryInitialNorms.text) == run.marks(Marks.FAULT) == []


def test_nothing_where_nobody_asks(tmp_path):
    with recording(tmp_path / "run", needs=Needs()) as run:
        train(copy.deepcopy(net()))
    assert run.marks(AuxiliaryTraining.text) == []
