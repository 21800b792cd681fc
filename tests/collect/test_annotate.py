"""Marks of the user."""

from __future__ import annotations

import torch

import traincheck
from tests.collect.recording import recording
from traincheck.schema.observations.registry import MARK_TEXTS


def test_a_mark_is_at_its_step(tmp_path):
    weight = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    with recording(tmp_path / "run") as run:
        for level in range(3):
            traincheck.mark("curriculum", level=level, weights=[1, 2.5], odd=torch.Size([3]))
            optimizer.zero_grad()
            weight.sum().backward()
            optimizer.step()
    marks = run.marks("curriculum")
    assert [(mark.step, mark.data["level"]) for mark in marks] == [(0, 0), (0, 1), (1, 2)]
    assert marks[0].data["weights"] == [1, 2.5]
    assert marks[0].data["odd"] == "torch.Size([3])"


def test_it_cannot_be_taken_for_one_of_ours(tmp_path):
    with recording(tmp_path / "run") as run:
        for text in sorted(MARK_TEXTS):
            traincheck.mark(text, modules=None)
    ours = [mark for mark in run.of("mark") if mark.text in MARK_TEXTS]
    assert [mark.text for mark in ours] == ["process"]
    assert len(run.of("mark")) == 1 + len(MARK_TEXTS)


def test_a_mark_where_nothing_is_recorded_is_written_nowhere(tmp_path):
    traincheck.mark("alone", value=object())
    with recording(tmp_path / "run") as run:
        traincheck.mark("together")
    traincheck.mark("alone", value=object())
    assert len(run.marks("together")) == 1
    assert run.marks("alone") == []


def test_programs_of_the_research_release_run_and_set_the_stage(tmp_path):
    program = """
import torch
from traincheck import annotate_stage
from traincheck.instrumentor import META_VARS, meta_vars

annotate_stage("init")
META_VARS["step"] = -1
weight = torch.nn.Parameter(torch.ones(2))
optimizer = torch.optim.SGD([weight], lr=0.1)
for _ in range(2):
    META_VARS["step"] += 1
    annotate_stage("training")
    optimizer.zero_grad()
    weight.sum().backward()
    optimizer.step()
    annotate_stage("testing")
    torch.manual_seed(0)
    annotate_stage("warming up")
assert meta_vars["step"] == 1
"""
    with recording(tmp_path / "run") as run:
        exec(program, {})
    seeds = [event.stage for event in run.of("rng") if event.change == "seed"]
    assert seeds == ["eval", "eval"]
    assert [event.stage for event in run.of("stage")] == ["train", "eval", "train", "eval"]
    assert len(run.marks("warming up")) == 2
    exec(program, {})  # and where nothing is recorded
