"""Two ranks that a script forks: files, numbers of collectives, names through DDP."""

from __future__ import annotations

import pytest

from benchmarks import harness
from tests.collect.recording import read_folder
from traincheck.readings.distributed.rank_steps import SYNC
from traincheck.schema.layout import EVENT_GLOB, parse_event_file_name
from traincheck.schema.torch_api import DDP_FORWARD, DDP_INIT, JOIN, Families

SCRIPT = """
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.algorithms.join import Join

# Freeing a group joins the threads of gloo while the GIL is held. One of them may wait for it.
kept = []


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 1)

    def forward(self, x):
        return self.layer(x)


def work(rank, path):
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=2)
    torch.manual_seed(rank)
    model = torch.nn.parallel.DistributedDataParallel(Net(), broadcast_buffers=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(2):
        optimizer.zero_grad()
        model(torch.full((2, 2), 1.0 + rank)).sum().backward()
        optimizer.step()
    Join([model], True)
    Join([model], enable=False)
    tensor = torch.full((3,), float(rank))
    dist.all_reduce(tensor)
    dist.broadcast(tensor, src=0)
    handle = dist.all_reduce(tensor, async_op=True)
    handle.wait()
    pair = dist.new_group([0, 1])
    dist.barrier(group=pair)
    if rank == 0:
        dist.send(torch.ones(2), dst=1)
    else:
        dist.recv(torch.zeros(2), src=0)
    dist.all_reduce(model.module.layer.weight.grad.data)
    dist.all_reduce(torch.zeros(1, 2))
    kept.append((model, handle, pair))
    dist.destroy_process_group()
    print("rank", rank, model.module.layer.weight.tolist(), flush=True)


if __name__ == "__main__":
    mp.start_processes(work, (sys.argv[1],), nprocs=2, start_method="fork")
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    script = folder / "ranks.py"
    script.write_text(SCRIPT)
    command = [harness.command("traincheck-collect"), "-p", script, "-o", folder / "run"]
    done = harness.run([*command, "--", folder / "store"])
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("[[") == 2  # weights; the words of two ranks may mix
    return folder / "run"


@pytest.fixture(scope="module")
def ranks(run):
    """Events of the two ranks; the parent that forked them has made none but its own."""
    events = read_folder(run)
    workers = {e.stream for e in events if e.kind == "collective"}
    return {rank: [e for e in events if e.rank == rank and e.stream in workers] for rank in (0, 1)}


def test_files_bear_the_rank_that_the_process_group_gave(run, ranks):
    found = [parse_event_file_name(path.name) for path in run.glob(EVENT_GLOB)]
    assert {rank for rank, _ in found} == {0, 1}
    assert len({stream for _, stream in found}) == len(found)
    assert all(ranks.values())
    for events in ranks.values():
        assert len({e.stream for e in events}) == 1
        assert [e.seq for e in events] == list(range(len(events)))


def test_collectives_are_numbered_alike(ranks):
    found = {
        rank: [(e.op, e.group == "world", e.number) for e in events if e.kind == "collective"]
        for rank, events in ranks.items()
    }
    assert found[0][:3] == found[1][:3] == [
        ("all_reduce", True, 0),
        ("broadcast", True, 1),
        ("all_reduce", True, 2),
    ]  # fmt: skip
    assert [op for op, _, _ in found[0]][3:5] == ["barrier", "send"]
    assert [op for op, _, _ in found[1]][3:5] == ["barrier", "recv"]
    assert (found[0][3][1:], found[1][3][1:]) == ((False, 0), (False, 0))
    assert found[0][4][1:] == found[1][4][1:] == (True, 3)


def test_content_before_and_after(ranks):
    reduce, broadcast = (
        {rank: [e for e in events if e.kind == "collective"][i] for rank, events in ranks.items()}
        for i in (0, 1)
    )
    assert reduce[0].before != reduce[1].before
    assert reduce[0].after == reduce[1].after
    assert broadcast[1].before == broadcast[1].after, "they were equal already"
    assert (reduce[0].shape, reduce[0].dtype) == ([3], "float32")
    later = [e for e in ranks[0] if e.kind == "collective"][2]
    assert (later.before is not None, later.after) == (True, None), "it may still be under way"


def test_a_gradient_has_the_name_of_its_parameter_by_data_too(ranks):
    for events in ranks.values():
        found = [e.variable for e in events if e.kind == "collective"]
        assert found[-2:] == ["Net.layer.weight", None]


def test_ddp_is_seen_and_seen_through(ranks):
    for events in ranks.values():
        calls = [e for e in events if e.kind == "call"]
        assert [e.api for e in calls if "DistributedDataParallel.__init__" in e.api]
        roots = [e for e in calls if e.family == Families.MODULE and e.root]
        assert {e.module for e in roots} == {"Net"}
        names = [e.name for e in events if e.kind == "state" and e.change == "new"]
        assert names == ["Net.layer.weight", "Net.layer.bias"]
        changed = [e.name for e in events if e.kind == "state" and e.role == "parameter"]
        assert changed.count("Net.layer.weight") == 3
        assert [e.step for e in events if e.kind == "step"] == [0, 1]


def test_what_ddp_exchanges_and_whether_a_forward_arms_it(ranks):
    for rank, events in ranks.items():
        (made,) = [e for e in events if e.kind == "call" and e.api == DDP_INIT]
        assert made.module == "Net"
        assert made.args["parameters"] == ["Net.layer.weight", "Net.layer.bias"]
        assert len(made.args["ids"]) == made.args["group_size"] == 2
        forwards = [e for e in events if e.kind == "call" and e.api == DDP_FORWARD]
        assert [e.args[SYNC] for e in forwards] == [True, True]
        (group,) = [e for e in events if e.kind == "mark" and e.text == "process group"]
        assert group.data == {"rank": rank, "world_size": 2}


def test_whether_a_rank_may_run_out_of_inputs(ranks):
    for events in ranks.values():
        assert [e.args for e in events if e.kind == "call" and e.api == JOIN] == [
            {"enable": True},
            {"enable": False},
        ]


def test_weights_of_the_ranks_stay_equal(ranks):
    prints = {
        rank: [
            e.summary.fingerprint
            for e in events
            if e.kind == "state" and e.role == "parameter" and e.change == "content"
        ]
        for rank, events in ranks.items()
    }
    assert len(prints[0]) == 4
    assert prints[0] == prints[1]
