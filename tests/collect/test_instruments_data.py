"""Batches, random generators, checkpoints and warnings as they are recorded."""

from __future__ import annotations

import collections
import dataclasses
import random
import subprocess
import sys
import warnings
import weakref

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset, WeightedRandomSampler
from torch.utils.data.dataloader import _SingleProcessDataLoaderIter
from torch.utils.data.distributed import DistributedSampler

from tests.collect.recording import read_folder, recording
from traincheck.schema.claims import BATCH_CONTENT, BATCH_ROWS, Needs
from traincheck.schema.rows import UNKNOWN, row_places, row_prints
from traincheck.schema.torch_api import Families


@dataclasses.dataclass
class Sample:
    x: torch.Tensor
    y: torch.Tensor


class Rows(Dataset):
    def __init__(self, count=6):
        self.rows = torch.arange(2.0 * count).view(count, 2)

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return self.rows[index]


def stacked(items, make):
    x = torch.stack(items)
    return make(x, x.sum(dim=1))


# -- data

BATCHES = {
    "tensor": (lambda x, y: x, ["batch"]),
    "tuple": (lambda x, y: (x, y), ["batch[0]", "batch[1]"]),
    "list": (lambda x, y: [x, [y]], ["batch[0]", "batch[1][0]"]),
    "dict": (lambda x, y: {"x": x, "y": y, "n": 3}, ["batch.x", "batch.y"]),
    "dataclass": (Sample, ["batch.x", "batch.y"]),
    "UserDict": (
        lambda x, y: collections.UserDict(x=x, y=y),
        ["batch.x", "batch.y"],
    ),
    "nested": (lambda x, y: {"in": {"x": x}, "out": (y,)}, ["batch.in.x", "batch.out[0]"]),
    "text": (lambda x, y: ["a", "b"], []),
}


@pytest.mark.parametrize("form", BATCHES)
def test_tensors_of_a_batch_are_named_by_their_path(tmp_path, form):
    make, paths = BATCHES[form]
    with recording(tmp_path) as run:
        loader = DataLoader(Rows(), batch_size=3, collate_fn=lambda items: stacked(items, make))
        assert len(list(loader)) == 2
    batches = run.of("batch")
    assert [list(e.leaves) for e in batches] == [paths] * 2
    assert [e.index for e in batches] == [0, 1]
    if paths:
        first = batches[0].leaves[paths[0]]
        assert (first["dtype"], first["shape"], first["device"]) == ("float32", [3, 2], "cpu")
        prints = [e.leaves[paths[0]]["fingerprint"] for e in batches]
        assert len(set(prints)) == 2


def test_equal_samples_have_equal_fingerprints_in_any_order(tmp_path):
    with recording(tmp_path) as run:
        list(DataLoader(Rows(), batch_size=6))
        list(DataLoader(Rows(), batch_size=2, shuffle=True))
    whole, *parts = run.of("batch")
    assert len(whole.samples) == 6
    assert len(set(whole.samples)) == 6
    assert sorted(whole.samples) == sorted(s for part in parts for s in part.samples)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype")
@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
def test_batches_of_nested_tensors(tmp_path, layout):
    rows = [torch.ones(1 + i % 3, 4) * i for i in range(6)]
    with recording(tmp_path / "run") as run:
        for batch in DataLoader(
            rows, 2, collate_fn=lambda found: torch.nested.nested_tensor(found, layout=layout)
        ):
            assert batch.is_nested
    found = [dict(batch.leaves)["batch"] for batch in run.of("batch")]
    assert len({leaf["fingerprint"] for leaf in found}) == 3


def test_epochs_loaders_and_samplers(tmp_path):
    with recording(tmp_path) as run:
        train = DataLoader(Rows(), batch_size=3, shuffle=True)
        weighted = DataLoader(
            Rows(), batch_size=6, sampler=WeightedRandomSampler([1.0] * 6, num_samples=6)
        )
        for _ in range(2):
            list(train)
            list(weighted)
    found = [(e.loader, e.epoch, e.index, e.sampler.rpartition(".")[2]) for e in run.of("batch")]
    assert found == [
        ("loader0", 0, 0, "RandomSampler"),
        ("loader0", 0, 1, "RandomSampler"),
        ("loader1", 0, 0, "WeightedRandomSampler"),
        ("loader0", 1, 0, "RandomSampler"),
        ("loader0", 1, 1, "RandomSampler"),
        ("loader1", 1, 0, "WeightedRandomSampler"),
    ]


class OwnLoader:
    """As that of fastai: it is none of torch's, whose iterators go over something like it."""

    def __init__(self, dataset):
        self.inner = DataLoader(dataset, batch_size=4)
        self.like_one = Like(self.inner)

    def __iter__(self):
        yield from _SingleProcessDataLoaderIter(self.like_one)


class Like:
    def __init__(self, loader):
        vars(self).update(vars(loader))
        self._auto_collation, self._index_sampler = True, loader.batch_sampler


def test_loaders_that_are_none_of_torch_are_told_apart(tmp_path):
    with recording(tmp_path) as run:
        loaders = [OwnLoader(TensorDataset(torch.randn(8, 2))) for _ in range(2)]
        for _ in range(2):
            for loader in loaders:
                list(loader)
    assert [(e.loader, e.epoch, e.index) for e in run.of("batch")] == [
        (f"loader{number}", epoch, index)
        for epoch in range(2)
        for number in range(2)
        for index in range(2)
    ]


def test_a_loader_in_place_of_a_dead_one_is_another(tmp_path):
    """Loaders made for each epoch often lie where the last one was."""
    with recording(tmp_path) as run:
        for _ in range(30):
            list(DataLoader(Rows(), batch_size=6))
    assert [(e.loader, e.epoch) for e in run.of("batch")] == [(f"loader{i}", 0) for i in range(30)]


def test_a_batch_for_evaluation_is_no_new_step(tmp_path):
    with recording(tmp_path) as run:
        model = nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for _ in range(2):
            for x in DataLoader(Rows(), batch_size=3):
                optimizer.zero_grad()
                model(x).sum().backward()
                optimizer.step()
            model.eval()
            with torch.no_grad():
                for x in DataLoader(Rows(), batch_size=2):
                    model(x)
            model.train()
    assert [(e.step, e.stage) for e in run.of("batch")] == [
        (0, "train"),
        (1, "train"),
        (1, "train"),  # fetched before anything tells that this is an evaluation
        (1, "eval"),
        (1, "eval"),
        (2, "train"),
        (3, "train"),
        (3, "train"),
        (3, "eval"),
        (3, "eval"),
    ]


def test_without_need_only_the_step_is_kept(tmp_path):
    with recording(tmp_path, needs=Needs(kinds=frozenset({"step"}))) as run:
        list(DataLoader(Rows(), batch_size=3))
    assert run.of("batch") == []


@pytest.mark.parametrize("states", [frozenset(), frozenset({BATCH_CONTENT})])
def test_what_a_batch_holds_is_recorded_for_those_who_ask(tmp_path, states):
    with recording(tmp_path, needs=Needs(kinds=frozenset({"batch"}), states=states)) as run:
        list(DataLoader(Rows(), batch_size=3))
    told = [leaf.get("fingerprint") for e in run.of("batch") for leaf in e.leaves.values()]
    assert all(told) if states else not any(told)


class Seeding(Rows):
    """Runs in the worker process what training scripts run there."""

    def __getitem__(self, index):
        torch.nn.functional.relu(self.rows[index])
        return self.rows[index]


def test_a_batch_is_known_again_in_a_model_and_a_loss_in_some_steps(tmp_path):
    torch.manual_seed(0)
    x, y = torch.randn(96, 3), torch.randint(0, 2, (96,))
    with recording(tmp_path) as run:
        model = nn.Linear(3, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for xb, yb in DataLoader(TensorDataset(x, y), batch_size=16):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(xb), yb).backward()
            optimizer.step()
        with torch.no_grad():
            model(xb)
    for batch, call, loss in zip(
        run.of("batch"),
        run.calls(Families.MODULE),
        run.calls("torch.nn.functional.cross_entropy"),
        strict=False,
    ):
        known = [leaf["fingerprint"] for leaf in batch.leaves.values()]
        is_looked_at = batch.step < 4  # then each tenth
        assert [call.args["0"].get("fingerprint"), loss.args["target"].get("fingerprint")] == (
            known if is_looked_at else [None, None]
        )
        assert "fingerprint" not in loss.args["input"]
    assert "fingerprint" not in run.calls(Families.MODULE)[-1].args["0"]  # evaluation


@pytest.mark.parametrize(
    "made",
    [torch.zeros(32).long(), torch.ones(32, 3), torch.arange(32), torch.randn(3, 5)],
    ids=["zeros", "ones", "counted", "few"],
)
def test_what_any_program_could_make_is_not_known_again(tmp_path, made):
    with recording(tmp_path) as run:
        for _ in DataLoader(torch.randn(64, 3), batch_size=32):
            nn.Identity()(made)
    assert all("fingerprint" not in call.args["0"] for call in run.calls(Families.MODULE))


def test_what_is_given_without_a_loader_is_not_known_again(tmp_path):
    with recording(tmp_path) as run:
        nn.Linear(3, 2)(torch.randn(32, 3))
    assert "fingerprint" not in run.calls(Families.MODULE)[0].args["0"]


def test_a_worker_has_no_step(tmp_path):
    with recording(tmp_path) as run:
        loader = DataLoader(Seeding(), batch_size=2, num_workers=2, multiprocessing_context="fork")
        batches = list(loader)
    assert len(batches) == 3
    main = {e.stream for e in run.of("batch")}
    assert len(main) == 1
    workers = {e.stream for e in run.events} - main
    assert len(workers) == 2
    inside = [e for e in run.events if e.stream in workers]
    assert {e.step for e in inside} == {None}
    assert [e.api for e in inside if e.kind == "call"] == ["torch.nn.functional.relu"] * 6
    marks = {e.stream: e.data["worker"] for e in run.marks("process")}
    assert {marks[stream] for stream in workers} == {True}
    assert {marks[stream] for stream in main} == {False}
    assert {e.workers for e in run.of("batch")} == {2}


class Scaling(Rows):
    """With a transform that is a module, as those of torchvision are."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Linear(2, 2)

    def __getitem__(self, index):
        return self.scale(self.rows[index]).detach()


def test_a_worker_forked_after_an_update_ends_no_step(tmp_path):
    model = nn.Linear(2, 1)
    with recording(tmp_path) as run:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        loader = DataLoader(Scaling(), batch_size=3, num_workers=1, multiprocessing_context="fork")
        for _ in range(2):
            for rows in loader:
                optimizer.zero_grad()
                model(rows).sum().backward()
                optimizer.step()
    main = {e.stream for e in run.of("batch")}
    inside = [e for e in run.events if e.stream not in main]
    assert len({e.stream for e in inside}) == 2
    assert {e.step for e in inside} == {None}
    assert [e for e in inside if e.kind == "step"] == []
    assert [e.step for e in run.of("step")] == [0, 1, 2, 3]


def test_a_loader_is_what_it_was(tmp_path):
    def order():
        generator = torch.Generator().manual_seed(0)
        loader = DataLoader(TensorDataset(torch.arange(20)), 4, shuffle=True, generator=generator)
        iterator = iter(loader)
        return [next(iterator)[0].tolist() for _ in range(3)], len(loader), torch.rand(2).tolist()

    torch.manual_seed(1)
    plain = order()
    with recording(tmp_path):
        torch.manual_seed(1)
        assert order() == plain


# -- rng


def test_seeds_that_are_set(tmp_path):
    with recording(tmp_path) as run:
        torch.manual_seed(3)
        random.seed(4)
        np.random.seed(5)
        random.seed("text")
        torch.random.manual_seed(6)
        torch.cuda.manual_seed_all(7)
    found = [(e.source, e.seed) for e in run.of("rng") if e.change == "seed"]
    assert found == [
        ("torch", 3),
        ("python", 4),
        ("numpy", 5),
        ("python", None),
        ("torch", 6),
        ("cuda", 7),
    ]


@pytest.mark.real_process
def test_a_seed_of_numpy_whose_generators_are_loaded_late(tmp_path):
    code = f"""
import numpy, torch  # numpy 2 loads its module of generators at its first use
from traincheck.collect.launch.settings import Settings
from traincheck.collect.session.session import Session
session = Session(Settings(directory={str(tmp_path)!r}, run_id="late"))
session.start()
numpy.random.seed(5)
session.stop()
"""
    subprocess.run([sys.executable, "-c", code], check=True)
    seeds = [event for event in read_folder(tmp_path) if event.kind == "rng"]
    assert [(event.source, event.seed) for event in seeds] == [("numpy", 5)]


def test_the_state_at_each_step(tmp_path):
    def steps(draw):
        model = nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
            if draw:
                torch.rand(1)

    found = {}
    for draw in (False, True):
        with recording(tmp_path / str(draw)) as run:
            steps(draw)
        found[draw] = [e.fingerprint for e in run.of("rng") if e.change == "state"]
    assert len(set(found[False])) == 1
    assert len(set(found[True])) == len(found[True]) > 1


def test_the_selective_view_has_the_states_that_may_come_again(tmp_path):
    with recording(tmp_path, needs=Needs(kinds=frozenset({"rng", "step"}))) as run:
        model = nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for step in range(22):
            optimizer.zero_grad()
            if step == 6:
                torch.manual_seed(0)
            if step == 13:
                torch.set_rng_state(torch.get_rng_state())
            if step == 15:
                with torch.random.fork_rng(devices=[]):
                    torch.rand(1)
            torch.rand(1)
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
    found = [event.step for event in run.of("rng") if event.change == "state"]
    assert found == [0, 1, 2, 3, 6, 10, 13, 15, 20]


# -- checkpoints


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(2, 2), nn.Linear(2, 1)
        self.register_buffer("mean", torch.zeros(1))


def test_what_a_load_changes(tmp_path):
    with recording(tmp_path / "run") as run:
        one, other = Net(), Net()
        state = one.state_dict()
        other.load_state_dict(state)
        other.load_state_dict(state)
    first, second = run.of("checkpoint")
    assert (first.op, first.entries, second.entries) == ("load_state_dict", 5, 5)
    assert (first.changed, second.changed) == (4, 0)
    assert (list(first.missing), list(first.unexpected)) == ([], [])
    assert {e.stage for e in run.of("checkpoint")} == {"init"}
    assert [(e.previous, e.stage) for e in run.of("stage")] == [
        ("init", "checkpoint"),
        ("checkpoint", "init"),
    ] * 2


def test_a_load_into_lazy_layers(tmp_path):
    """They have no shape yet, before the load or also after it."""

    def lazy():
        return nn.Sequential(nn.LazyLinear(3), nn.LazyBatchNorm1d(), nn.LazyLinear(2))

    empty, full = lazy().state_dict(), lazy()
    full(torch.ones(2, 4))
    with recording(tmp_path / "run") as run:
        model = lazy()
        model.load_state_dict(empty)
        model.load_state_dict(full.state_dict())
        model.load_state_dict(full.state_dict())
        other = nn.Sequential(nn.Linear(4, 3), nn.LazyBatchNorm1d(affine=False))
        other.load_state_dict(other.state_dict())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
    # What a load without shapes changes is not known.
    assert [e.changed for e in run.of("checkpoint")] == [None, 9, 0, None]


def test_keys_that_do_not_fit(tmp_path):
    with recording(tmp_path / "run") as run:
        state = Net().state_dict()
        state["extra"] = state.pop("head.weight")
        model = Net()
        model.load_state_dict(state, strict=False)
        with pytest.raises(RuntimeError, match="Missing key"):
            model.load_state_dict(state)
    (event,) = run.of("checkpoint")
    assert list(event.missing) == ["head.weight"]
    assert list(event.unexpected) == ["extra"]
    assert event.target == "Net"


def test_files_and_optimizers(tmp_path):
    path = tmp_path / "model.pt"
    with recording(tmp_path / "run") as run:
        model = Net()
        optimizer = torch.optim.Adam(model.parameters())
        torch.save({"model": model.state_dict()}, path)
        loaded = torch.load(path, weights_only=True)
        optimizer.load_state_dict(optimizer.state_dict())
    saved, read, restored = run.of("checkpoint")
    assert [saved.op, read.op, restored.op] == ["save", "load", "load_state_dict"]
    assert saved.path == read.path == str(path)
    assert saved.entries == read.entries == 1
    assert restored.target == "torch.optim.adam.Adam"
    assert list(loaded) == ["model"]


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(3, 2), nn.Linear(2, 3, bias=False)
        self.head.weight = self.embed.weight


def test_what_fits_is_shared_or_untied_by_a_load(tmp_path):
    with recording(tmp_path / "run") as run:
        model = Tied()
        model.load_state_dict(model.state_dict())
        copies = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        model.load_state_dict({f"module.{n}": t for n, t in copies.items()}, strict=False)
        model.load_state_dict(copies, assign=True)
    own, prefixed, assigned = run.of("checkpoint")
    assert (own.matched, own.shared, own.changed, own.untied) == (2, 2, 0, [])
    assert (prefixed.matched, prefixed.shared, prefixed.entries) == (0, 0, 2)
    assert (assigned.matched, assigned.shared) == (2, 0)
    assert assigned.untied == ["Tied.embed.weight", "Tied.head.weight"]
    assert own.where.partition(":")[0] == __file__


def test_a_load_tells_where_a_state_of_its_own_tensors_was_made(tmp_path):
    with recording(tmp_path / "run") as run:
        model = nn.Linear(2, 1)
        state = model.state_dict()
        model.load_state_dict(state)
        with torch.no_grad():
            model.weight.add_(1)
        model.load_state_dict(state)
        model.load_state_dict(dict(state))
    fresh, stale, unknown = run.of("checkpoint")
    assert fresh.made.partition(":")[0] == __file__
    assert (fresh.is_stale, stale.is_stale, unknown.is_stale) == (False, True, None)
    assert unknown.made is None
    assert unknown.shared == 2


def test_states_are_not_kept_alive_or_changed(tmp_path):
    class Watched(nn.Linear):
        pass

    with recording(tmp_path / "run"):
        model = Watched(2, 1)
        state = model.state_dict()
        gone = weakref.ref(state)
        assert type(state) is collections.OrderedDict
        assert list(vars(state)) == ["_metadata"]
        with torch.inference_mode():
            nn.Linear(2, 1).state_dict()
        del state
        assert gone() is None


@pytest.mark.parametrize(("shown", "told"), [(3, [3, 4]), (None, [None, None])])
def test_the_epoch_that_a_sampler_was_told(tmp_path, shown, told):
    sampler = DistributedSampler(Rows(), num_replicas=1, rank=0) if shown else None
    loader = DataLoader(Rows(), batch_size=6, sampler=sampler)
    with recording(tmp_path / "run") as run:
        for epoch in (3, 4):
            if sampler is not None:
                sampler.set_epoch(epoch)
            list(loader)
    assert [e.sampler_epoch for e in run.of("batch")] == told


def test_the_weights_of_a_sampler_and_the_samples_there_are(tmp_path):
    with recording(tmp_path / "run") as run:
        sampler = WeightedRandomSampler(torch.ones(4), 6)
        list(DataLoader(Rows(), batch_size=6, sampler=sampler))
        list(DataLoader(Rows(), batch_size=6))
    told = [(e.weights, e.dataset_size) for e in run.of("batch")]
    assert told == [(4, len(Rows())), (0, len(Rows()))]


def test_the_samples_that_drop_last_leaves_out(tmp_path):
    with recording(tmp_path / "run") as run:
        list(DataLoader(Rows(), batch_size=4, drop_last=True))
        list(DataLoader(Rows(), batch_size=4))
        sampler = DistributedSampler(Rows(), num_replicas=2, rank=0)
        list(DataLoader(Rows(), batch_size=2, sampler=sampler, drop_last=True))
        list(DataLoader(Rows(), batch_sampler=[[0, 1], [2, 3]]))
    told = {e.loader: (e.dataset_size, e.dropped, e.replicas) for e in run.of("batch")}
    assert list(told.values()) == [(6, 2, 0), (6, 0, 0), (6, 1, 2), (0, 0, 0)]


def test_loaders_of_the_same_arrays_read_one_dataset(tmp_path):
    x, places = torch.arange(32.0).view(8, 4), [0, 3, 5]
    with recording(tmp_path / "run") as run:
        for data in (
            TensorDataset(x),
            TensorDataset(x),
            TensorDataset(x[4:]),
            Subset(whole := Rows(), places),
            Subset(whole, places),
            Subset(whole, [1, 2]),
            whole,
        ):
            list(DataLoader(data, batch_size=8))
    one, again, part, few, few_again, others, all_of = (e.dataset for e in run.of("batch"))
    assert (one, few) == (again, few_again)
    assert len({one, part, few, others, all_of}) == 5


def test_a_part_of_a_dataset_names_the_dataset(tmp_path):
    whole = Rows()
    with recording(tmp_path / "run") as run:
        for data in (Subset(whole, [1]), whole, Subset(whole, [1, 2]), Subset(Rows(), [3])):
            list(DataLoader(data, batch_size=8))
    early, all_of, part, other = run.of("batch")
    assert [e.part_of for e in (early, all_of, part, other)] == ["", "", all_of.dataset, ""]


# -- rows


def rows_of(event):
    return {path: row_prints(text) for path, text in event.rows.items()}


def pairs(items):
    x = torch.stack(items)
    return {"x": x, "y": x.sum(dim=1).long(), "of all": torch.ones(()), "others": torch.ones(7, 2)}


def test_each_leaf_with_as_many_rows_has_their_fingerprints(tmp_path):
    with recording(tmp_path) as run:
        list(DataLoader(Rows(), batch_size=6, collate_fn=pairs))
        list(DataLoader(Rows(), batch_size=2, collate_fn=pairs, sampler=[4, 1]))
    whole, part = map(rows_of, run.of("batch"))
    assert list(whole) == ["batch.x", "batch.y"]
    for path, rows in whole.items():
        assert len(set(rows)) == 6
        assert part[path] == [rows[4], rows[1]]


def test_rows_of_another_run_have_other_fingerprints(tmp_path):
    found = []
    for name in ("one", "other"):
        with recording(tmp_path / name) as run:
            list(DataLoader(Rows(), batch_size=6))
        found += [set(rows_of(batch)["batch"]) for batch in run.of("batch")]
    assert found[0].isdisjoint(found[1])


@pytest.mark.parametrize("size", [3, 40, 5000])
def test_large_and_small_rows_are_known_again(tmp_path, size):
    x = torch.randn(40, size)
    with recording(tmp_path) as run:
        list(DataLoader(TensorDataset(x), batch_size=40))
        list(DataLoader(TensorDataset(x.flip(0)), batch_size=8))
    (whole, *parts) = [rows_of(batch)["batch[0]"] for batch in run.of("batch")]
    assert len(set(whole)) == len(row_places(40)) == 32
    assert set(whole) <= {one for rows in parts for one in rows}


def test_a_large_row_that_is_constant_where_it_is_read_is_not_known(tmp_path):
    with recording(tmp_path) as run:
        list(DataLoader(torch.zeros(2, 5000), batch_size=2))
    assert rows_of(run.of("batch")[0])["batch"] == [UNKNOWN] * 2


def test_rows_are_fingerprinted_in_some_steps_and_in_evaluations(tmp_path):
    needs = Needs(kinds=frozenset({"batch", "step"}), states=frozenset({BATCH_ROWS}))
    with recording(tmp_path, needs=needs) as run:
        model = nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for _ in range(2):
            model.train()
            for x in DataLoader(Rows(24), batch_size=2):
                model(x).sum().backward()
                optimizer.step()
            model.eval()
            with torch.no_grad():
                for x in DataLoader(Rows(), batch_size=2):
                    model(x)
    of = {True: [], False: []}
    for batch in run.of("batch"):
        of[batch.drawn == 2 and batch.dataset_size == 24].append(bool(batch.rows))
    firsts = {*range(8), 14, 21}
    assert of[True] == [step in {*firsts, 12} for step in range(24)]  # 12 begins an epoch
    assert of[False] == [True] * 6


def test_without_need_no_rows_are_fingerprinted(tmp_path):
    with recording(tmp_path, needs=Needs(kinds=frozenset({"batch"}))) as run:
        list(DataLoader(Rows(), batch_size=3))
    assert [dict(batch.rows) for batch in run.of("batch")] == [{}, {}]


def test_parts_of_a_file(tmp_path):
    with recording(tmp_path / "run") as run:
        model = Net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 3)
        parts = {"net": model, "optim": optimizer, "schedule": schedule}
        torch.save({**{k: v.state_dict() for k, v in parts.items()}, "epoch": 3}, tmp_path / "c.pt")
        schedule.load_state_dict(schedule.state_dict())
    saved, restored = run.of("checkpoint")
    assert saved.numbers == {"epoch": 3}
    assert saved.parts == {
        "net": {"kind": "model", "entries": 5},
        "optim": {"kind": "optimizer", "params": 4, "entries": 0, "lr": [0.5], "dtypes": []},
        "schedule": {"kind": "scheduler", "last_epoch": 0},
    }
    assert restored.target == "torch.optim.lr_scheduler.StepLR"


def test_a_load_that_fails_leaves_the_stage(tmp_path):
    with recording(tmp_path / "run") as run:
        with pytest.raises(FileNotFoundError):
            torch.load(tmp_path / "missing.pt", weights_only=True)
        torch.nn.functional.relu(torch.ones(1))
    assert run.of("checkpoint") == []
    assert run.of("call")[-1].stage == "init"


# -- warnings


def test_a_warning_is_kept_with_its_place(tmp_path):
    with recording(tmp_path) as run, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.warn("unheard", UserWarning, stacklevel=1)
        warnings.warn(DeprecationWarning("old"), stacklevel=1)
    found = [(e.category, e.text, e.where.rpartition(":")[0]) for e in run.of("warning")]
    assert found == [
        ("UserWarning", "unheard", __file__),
        ("DeprecationWarning", "old", __file__),
    ]


def test_a_warning_that_does_not_pass_through_warn_is_kept_once(tmp_path):
    with recording(tmp_path) as run, warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("always")
        warnings.warn_explicit(
            "from C++", UserWarning, "elsewhere.py", 7
        )  # as torch's own code does
        warnings.warn("from Python", stacklevel=1)
        warnings.simplefilter("ignore")
        warnings.warn_explicit("not shown", UserWarning, "elsewhere.py", 8)
    assert [str(w.message) for w in shown] == ["from C++", "from Python"]
    found = [(e.text, e.where) for e in run.of("warning")]
    assert [text for text, _ in found] == ["from C++", "from Python"]
    assert found[0][1] == "elsewhere.py:7"


WARNS = """
import warnings
import weakref
import torch
import torch.nn.functional as F
from torch import nn

def level(n):
    warnings.warn(f"level {n}", UserWarning, stacklevel=n)

def outer(n):
    level(n)

class Model(nn.Module):
    def forward(self, x):
        for n in (1, 2, 3):
            outer(n)
        warnings.warn("from a module", stacklevel=2)
        warnings.warn("above a module", stacklevel=4)
        return x

for n in (1, 2, 3, 4, 9):
    outer(n)
Model()(torch.ones(1))
F.softmax(torch.ones(2, 2))  # torch warns about the dim, at the user's line
F.mse_loss(torch.ones(2, 1), torch.ones(2))
p = nn.Parameter(torch.ones(2))
scheduler = torch.optim.lr_scheduler.StepLR(torch.optim.SGD([p], lr=0.1), 1)
scheduler.step()
for _ in range(3):
    warnings.warn("once for each place")
warnings.warn_explicit("explicit", UserWarning, "elsewhere.py", 7)
"""
START = """
import sys, torch
from traincheck.collect.session import session
from traincheck.collect.launch.settings import Settings
session.start(Settings(directory=sys.argv[1], run_id="r"))
"""


def test_what_is_shown_is_what_was_shown(tmp_path):
    """Text and place of warnings, from user code and from inside torch, at any stacklevel."""
    script = tmp_path / "warns.py"
    script.write_text(WARNS)
    run = f"\nimport runpy; runpy.run_path({str(script)!r}, run_name='__main__')"
    shown = {}
    for name, code in (("plain", "import torch" + run), ("traced", START + run)):
        folder = tmp_path / name
        folder.mkdir()
        done = subprocess.run(
            [sys.executable, "-W", "default", "-c", code, str(folder)],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        shown[name] = done.stderr
    assert shown["traced"] == shown["plain"]
    for text in ("level 3", "from a module", "Implicit dimension", "target size", "explicit"):
        assert text in shown["plain"]
    assert shown["plain"].count("once for each place") >= 1
