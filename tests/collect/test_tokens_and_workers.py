"""The records of token batches, of draws, and of the generators of workers."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, dataloader
from torch.utils.data._utils import worker
from torch.utils.data._utils.fetch import _MapDatasetFetcher

from tests.collect.recording import recording
from traincheck.collect.observers.worker_rng import WorkerRngObserver, states
from traincheck.collect.stats.next_token_labels import token_facts
from traincheck.schema.observations.data import WorkerRng

EOS = 1


def rows(*values):
    return torch.tensor(values)


def test_padding_and_on_which_side_it_is():
    behind = {"attention_mask": rows([1, 1, 1, 0], [1, 1, 1, 1])}
    before = {"attention_mask": rows([0, 1, 1, 1], [1, 1, 1, 1])}
    assert token_facts(behind) == {"padding": 0.125, "left_padded": False}
    assert token_facts(before) == {"padding": 0.125, "left_padded": True}
    assert token_facts({"attention_mask": rows([1, 1])}) == {"padding": 0.0}


def test_rows_in_which_positions_begin_anew():
    assert token_facts({"position_ids": rows([0, 1, 0, 1], [0, 1, 2, 3])}) == {"resets": 1}
    assert token_facts({"position_ids": rows([0, 1, 2, 3])}) == {"resets": 0}


IDS = rows([5, 6, EOS, EOS], [7, 8, 9, EOS])
MASK = rows([1, 1, 1, 0], [1, 1, 1, 1])


@pytest.mark.parametrize(
    ("labels", "lost"),
    [
        (IDS.masked_fill(IDS == EOS, -100), EOS),  # all that are padding by their id
        (IDS.masked_fill(MASK == 0, -100), None),  # padding alone
        (rows([-100, 6, EOS, -100], [-100, 8, 9, EOS]), None),  # a prompt
        (rows([-100, -100, -100, -100], [-100, -100, -100, -100]), None),
        (rows([5, 6, -100, -100], [7, 8, 9, EOS]), None),  # one row cut short
    ],
)
def test_the_end_that_is_never_a_label(labels, lost):
    facts = token_facts({"input_ids": IDS, "attention_mask": MASK, "labels": labels})
    assert facts.get("lost_end") == lost


def test_labels_that_are_tokens_are_told_from_tags_and_classes():
    told = {"labels": IDS.masked_fill(MASK == 0, -100)}
    tags = {"labels": rows([0, 1, 0, 0], [1, 0, 0, 1])}
    classes = {"labels": torch.tensor([0, 2])}
    assert [
        token_facts({"input_ids": IDS, "attention_mask": MASK, **labels}).get("token_labels")
        for labels in (told, tags, classes)
    ] == [True, None, None]


SPECIAL = {"pad_token_id": 0, "unk_token_id": 3, "eos_token_id": EOS}


@pytest.mark.parametrize(
    ("labels", "counted"),
    [
        (rows([5, 6, EOS, 0], [7, EOS, 0, 0]), 0),
        (rows([5, 6, EOS, -100], [7, EOS, -100, -100]), None),
        (rows([5, 6, EOS, 0], [7, EOS, -100, -100]), None),  # a part of it
        (rows([1, 0, 1, 0], [1, 1, 0, 0]), None),  # tags of words
    ],
)
def test_padding_that_is_a_label(labels, counted):
    batch = {"input_ids": rows([5, 6, EOS, 0], [7, EOS, 0, 0]), "labels": labels}
    mask = rows([1, 1, 1, 0], [1, 1, 0, 0])
    assert token_facts({**batch, "attention_mask": mask}).get("padding_label") == counted
    assert "padding_label" not in token_facts(batch)


def test_padding_of_its_own_is_no_lost_end():
    padded = rows([5, 6, EOS, 0], [7, EOS, 0, 0])
    labels = padded.masked_fill(padded == 0, -100)
    assert "lost_end" not in token_facts({"input_ids": padded, "labels": labels}, SPECIAL)
    tags = rows([1, 0, -100, -100], [1, -100, -100, -100])  # of words; the end has none
    tagged = {"input_ids": padded, "attention_mask": (padded != 0).long(), "labels": tags}
    assert "lost_end" not in token_facts(tagged, SPECIAL)
    by_end = {**tagged, "input_ids": padded.masked_fill(padded == 0, EOS)}
    assert "lost_end" not in token_facts(by_end, {**SPECIAL, "pad_token_id": EOS})


def test_without_padding_the_configuration_tells_whether_the_end_is_padding():
    labels = IDS.masked_fill(IDS == EOS, -100)
    facts = token_facts({"input_ids": IDS, "labels": labels}, {**SPECIAL, "pad_token_id": EOS})
    assert facts["lost_end"] == EOS
    assert "lost_end" not in token_facts({"input_ids": IDS, "labels": labels}, SPECIAL)
    assert "lost_end" not in token_facts({"input_ids": IDS, "labels": labels})


def test_padding_that_is_attended_to():
    ids = rows([5, 6, 0, 0], [7, 8, 9, 0], [0, 0, 5, 6])
    right = {"input_ids": ids, "attention_mask": (ids != 0).long()}
    wrong = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    assert token_facts(right, SPECIAL)["attended_padding"] == 0
    assert token_facts(wrong, SPECIAL)["attended_padding"] == 2
    assert "attended_padding" not in token_facts(wrong)
    assert "attended_padding" not in token_facts(wrong, {**SPECIAL, "eos_token_id": 0})
    assert "attended_padding" not in token_facts({"input_ids": ids}, SPECIAL)


def test_the_share_of_unknown_tokens_leaves_padding_out():
    ids = rows([3, 6, 0, 0], [3, 8, 0, 0])
    assert token_facts({"input_ids": ids}, SPECIAL)["unknown"] == 0.5
    assert "unknown" not in token_facts({"input_ids": ids}, {"pad_token_id": 0})
    assert "unknown" not in token_facts({"input_ids": ids}, {"unk_token_id": None})


@pytest.mark.parametrize(
    "batch",
    [IDS, [IDS, IDS], {"x": IDS}, {"attention_mask": torch.ones(2, 2)}, {"position_ids": [1, 0]}],
)
def test_other_batches_say_nothing(batch):
    assert token_facts(batch) == {}


class Noisy(Dataset):
    of_class = np.random.default_rng(1)

    def __init__(self):
        self.own = torch.Generator()
        self.transforms = [{"flip": random.Random(2)}]

    def __len__(self):
        return 8

    def __getitem__(self, index):
        return torch.tensor(float(index) + self.of_class.random())


def test_generators_are_found_wherever_they_are_kept():
    dataset = Noisy()
    before = states(dataset)
    assert {"dataset.own", "dataset.of_class", "dataset.transforms[0]['flip']"} < set(before)
    assert {"python", "numpy", "torch"} < set(before)
    assert states(dataset) == before  # looking draws nothing
    torch.rand(1, generator=dataset.own)
    after = states(dataset)
    assert [name for name in before if before[name] != after[name]] == ["dataset.own"]


def test_generators_are_told_of_without_numpy(monkeypatch):
    def numpy(_):
        raise RuntimeError("Numpy is not available")

    known = states(Noisy())
    monkeypatch.setattr(torch.Tensor, "numpy", numpy)
    assert states(Noisy()).keys() == known.keys()


def test_workers_tell_what_they_draw_from_and_batches_which_rows(tmp_path):
    with recording(tmp_path) as run:
        loader = DataLoader(Noisy(), 2, shuffle=True, num_workers=2, multiprocessing_context="fork")
        for _ in loader:
            pass
    told = [mark.data for mark in run.marks(WorkerRng.text)]
    assert sorted((d["worker"], d["loader"], d["epoch"]) for d in told) == [
        (0, "loader0", 0),
        (1, "loader0", 0),
    ]
    first, second = told
    assert first["start"]["dataset.of_class"] == second["start"]["dataset.of_class"]
    assert first["after"]["dataset.of_class"] != first["start"]["dataset.of_class"]
    assert first["start"]["torch"] != second["start"]["torch"]
    batches = run.of("batch")
    assert sorted(i for batch in batches for i in batch.indices) == list(range(8))
    assert {batch.drawn for batch in batches} == {2}


def test_a_loop_may_be_given_its_dataset_under_any_name(tmp_path, monkeypatch):
    """torch 2.15 hands it over in a list that the loop empties."""
    dataset = Noisy()

    def loop(dataset_kind, dataset_holder, base_seed, init_fn, worker_id, num_workers):
        held = dataset_holder.pop()
        info = worker.WorkerInfo(id=worker_id, num_workers=num_workers, seed=1, dataset=held)
        monkeypatch.setattr(worker, "_worker_info", info)
        init_fn(worker_id)
        _MapDatasetFetcher(held, True, torch.stack, False).fetch([0])

    with recording(tmp_path) as run:
        kind = dataloader._DatasetKind.Map
        args, kwargs = WorkerRngObserver(run.session).watched(
            loop, None, (kind, [dataset], 5, None, 1, 2), {}
        )
        loop(*args, **kwargs)
    (mark,) = run.marks(WorkerRng.text)
    assert (mark.data["worker"], mark.data["workers"], mark.data["seed"]) == (1, 2, "5")
    assert mark.data["start"]["dataset.own"] == mark.data["after"]["dataset.own"]
    assert mark.data["start"]["dataset.of_class"] != mark.data["after"]["dataset.of_class"]


class Stream(IterableDataset):
    def __iter__(self):
        return iter(torch.arange(4.0))


def test_a_stream_draws_no_indices(tmp_path):
    with recording(tmp_path) as run:
        for _ in DataLoader(Stream(), 2):
            pass
    assert {(batch.indices, batch.drawn) for batch in run.of("batch")} == {((), 0)}
