"""The record of a model's structure."""

from __future__ import annotations

import torch
from torch import nn

from traincheck.collect.tracking.model_structure import structure


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, (3, 5), stride=2)
        self.norm = nn.BatchNorm2d(8)
        self.act = nn.ReLU()
        self.words = nn.Embedding(200, 4, padding_idx=1)
        self.lazy = nn.LazyLinear(3)
        self.half = nn.Linear(4, 2, bias=False).to(torch.bfloat16)


def test_sizes_and_settings_of_each_module():
    told = structure(Net(), "Net").data()
    modules = told["modules"]
    assert list(modules) == [
        "Net", "Net.conv", "Net.norm", "Net.act", "Net.words", "Net.lazy", "Net.half"
    ]  # fmt: skip
    conv = modules["Net.conv"]
    assert conv["family"] == "convolution"
    assert (conv["in_channels"], conv["out_channels"]) == (3, 8)
    assert (conv["kernel_size"], conv["stride"], conv["bias"]) == ([3, 5], [2, 2], True)
    assert conv["channels_last"] is False
    assert modules["Net.norm"]["num_features"] == 8
    assert modules["Net.words"]["padding_idx"] == 1
    assert modules["Net.half"]["bias"] is False
    assert "family" not in modules["Net.act"]
    assert told["dtypes"]["bfloat16"] == 8


def test_a_layout_is_told():
    model = nn.Conv2d(3, 8, 3).to(memory_format=torch.channels_last)
    assert structure(model, "Conv2d").data()["modules"]["Conv2d"]["channels_last"] is True


def test_ids_of_tokens_come_from_the_configuration():
    model = nn.Linear(2, 2)
    model.config = type("Config", (), {"pad_token_id": 0, "eos_token_id": [1, 2]})()
    assert structure(model, "Linear").data()["tokens"] == {"pad_token_id": 0}


def test_a_configuration_that_raises_is_left_alone():
    class Config:
        def __getattr__(self, name):
            raise RuntimeError(name)

    model = nn.Linear(2, 2)
    model.config = Config()
    assert structure(model, "Linear").data()["tokens"] == {}


def test_parameters_that_are_not_contiguous_are_named():
    model = nn.Sequential(nn.Linear(4, 3), nn.Conv2d(3, 8, 3).to(memory_format=torch.channels_last))
    assert "strided" not in structure(model, "Net").data()
    model[0].weight = nn.Parameter(torch.randn(4, 3).t())
    assert structure(model, "Net").strided == ("Net.0.weight",)


def test_requires_grad_as_an_attribute_of_a_module_is_told():
    model = nn.Sequential(nn.Sequential(nn.Linear(2, 2)), nn.Linear(2, 2))
    model[0].requires_grad = False
    modules = structure(model, "Net").data()["modules"]
    assert {path: facts.get("requires_grad") for path, facts in modules.items()} == {
        "Net": None,
        "Net.0": False,
        "Net.0.0": None,
        "Net.1": None,
    }


def test_modules_without_settings_share_their_facts():
    """Else a model of 100,000 modules fills the garbage collector's lists."""
    told = structure(
        nn.Sequential(nn.ReLU(), nn.ReLU(), nn.Dropout(0.1), nn.Dropout(0.2)), "Net"
    ).data()
    first, second, dropout, other = list(told["modules"].values())[1:]
    assert first is second
    assert (dropout["p"], other["p"]) == (0.1, 0.2)
