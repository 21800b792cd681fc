"""Whether torch runs the program, or only compiles or exports it."""

from __future__ import annotations

import pytest
import torch

from traincheck.collect.trace_writer import recording_state


def test_a_program_that_runs_is_neither():
    assert not recording_state.is_traced()
    assert recording_state.state._is_compiling_flag is False


def test_the_flag_is_up_while_torch_exports():
    seen = []

    class Model(torch.nn.Module):
        def forward(self, x):
            seen.append(recording_state.is_traced() or recording_state.state._is_compiling_flag)
            return x + 1

    torch.export.export(Model(), (torch.ones(2),), strict=False)
    assert seen
    assert all(seen)


@pytest.mark.parametrize("answer", [True, False])
def test_without_the_flag_torch_is_asked(monkeypatch, answer):
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: answer)
    assert recording_state._Asked()._is_compiling_flag is answer
