"""Numbers of tensors: who gets them, when, and that odd tensors are left alone."""

import math

import orjson
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.flop_counter import FlopCounterMode

from tests.collect.recording import recording
from traincheck.collect.stats import argument_stats, calls
from traincheck.collect.tensors.sums import norms_of
from traincheck.schema.claims import ACTIVATION_FUNCTIONS, Needs, Schedule, sampled
from traincheck.schema.torch_api import Families
from traincheck.schema.values import tensors_in

SCHEDULE = Schedule()
RELU = "torch.nn.functional.relu"
CROSS_ENTROPY = "torch.nn.functional.cross_entropy"

_SOFTMAXES = {
    "torch.softmax": lambda x: torch.softmax(x, -1),
    "torch.nn.functional.softmax": lambda x: F.softmax(x, -1),
    "torch.Tensor.softmax": lambda x: x.softmax(-1),
}


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Linear(6, 8)
        self.act = nn.LeakyReLU()
        self.block = Block()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.block(self.act(self.fc1(x)))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc2 = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc2(F.relu(x))


def train(steps: int = 2, poison: float = 0.0) -> Net:
    torch.manual_seed(0)
    net = Net()
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    inputs = torch.randn(4 * steps, 6)
    inputs[1, 2] += poison
    data = TensorDataset(inputs, torch.arange(4 * steps) % 4)
    for x, y in DataLoader(data, batch_size=4):
        opt.zero_grad()
        F.cross_entropy(net(x), y).backward()
        opt.step()
    return net


def of(events, kind):
    return [e for e in events if e.kind == kind]


def test_everything_has_its_numbers_in_the_full_view(tmp_path):
    with recording(tmp_path / "run") as run:
        net = train()
    batch = run.of("batch")[0]
    inputs, labels = (leaf["stats"] for leaf in batch.leaves.values())
    assert inputs["nonfinite"] == 0
    assert inputs["min"] < inputs["mean"] < inputs["max"]
    assert labels == {"min": 0, "max": 3, "top": 0.25}
    new = [e for e in run.of("state") if (e.role, e.change) == ("parameter", "new")]
    assert all({"norm", "std", "nonfinite"} <= set(e.summary.stats) for e in new)
    last = [e for e in run.of("state") if e.name == "Net.fc1.weight" and e.role == "parameter"][-1]
    assert last.summary.stats["norm"] == pytest.approx(float(net.fc1.weight.detach().norm()))
    gradients = [e for e in run.of("state") if e.role == "gradient" and e.change == "set"]
    assert len(gradients) == 8
    assert all(e.summary.stats["norm"] > 0 for e in gradients)
    (relu, *_) = run.calls(RELU)
    assert {"zeros", "dead", "min", "max", "nonfinite"} <= set(relu.result["stats"])
    (loss, *_) = run.calls(CROSS_ENTROPY)
    found = tensors_in(loss.args)
    assert found["input"].stats["row_sum_min"] <= found["input"].stats["row_sum_max"]
    assert found["target"].stats == {"min": 0, "max": 3}


@pytest.mark.parametrize("labels", [[0, 2, 2, 1], [-100, 3, 3, 3], [5, 1000, 7, 7], [4, 4]])
def test_few_and_many_labels_have_the_same_numbers(tmp_path, labels):
    few = torch.tensor(labels)
    with recording(tmp_path / "run") as run:
        for data in (few, few.repeat(1000)):
            list(DataLoader(TensorDataset(data), batch_size=len(data)))
    short, long = (batch.leaves["batch[0]"]["stats"] for batch in run.of("batch"))
    assert short == long
    assert ("top" in short) is (min(labels) >= 0 and max(labels) < 1000)


def test_a_look_that_takes_no_numbers_repeats_none(tmp_path):
    with recording(tmp_path / "run") as run:
        net = train(1)
        net.fc1.weight.grad.zero_()
        net.fc1.weight.sum().backward()
    written = [e for e in run.of("state") if e.role == "gradient" and e.name == "Net.fc1.weight"]
    by_hand, last = written[-2:]
    assert (by_hand.summary.zero, by_hand.summary.stats) == (True, None)
    assert last.summary.stats["norm"] == pytest.approx(math.sqrt(48))


def test_a_step_that_never_ends_is_not_looked_at_for_ever(tmp_path):
    x = torch.ones(3, requires_grad=True)
    with recording(tmp_path / "run") as run:
        for _ in range(calls._MAX_ACTIVATIONS + 50):
            F.relu(x * 1)
    told = [call for call in run.calls(RELU) if "stats" in call.result]
    assert len(run.calls(RELU)) == calls._MAX_ACTIVATIONS + 50
    assert len(told) == calls._MAX_ACTIVATIONS


def test_only_what_is_asked_for(tmp_path):
    needs = Needs(stats=frozenset({"gradient"}), states=frozenset({"gradient@backward"}))
    with recording(tmp_path / "run", needs=needs) as run:
        train()
    told = [e for e in run.of("state") if e.summary is not None and e.summary.stats]
    assert {e.role for e in told} == {"gradient"}
    assert not run.of("batch")
    assert not run.calls(RELU)
    assert run.marks("process")[0].data["stats"] == ["gradient"]


@pytest.mark.parametrize("exact", [True, False], ids=["all", "selected"])
def test_each_look_tells_the_norm_of_what_it_found(tmp_path, exact):
    stats, states = {"gradient", "parameter"}, {"gradient@backward", "parameter@step"}
    needs = None if exact else Needs(stats=frozenset(stats), states=frozenset(states))
    norms = []
    with recording(tmp_path / "run", needs=needs) as run:
        torch.manual_seed(0)
        net = nn.Linear(6, 4)
        opt = torch.optim.SGD(net.parameters(), lr=0.1)
        for step in range(6):
            opt.zero_grad()
            net(torch.randn(4, 6)).square().sum().backward()
            if step == 4:
                net.bias.grad[1] = math.inf
            norms.append([p.grad.norm().item() for p in net.parameters()])
            opt.step()
            norms[-1] += [p.detach().norm().item() for p in net.parameters()]
    told = [[] for _ in norms]
    for event in run.of("state"):
        if event.step is not None and event.summary is not None and event.change != "new":
            told[event.step].append(event.summary.stats)
    for found, expected in zip(told[:4], norms, strict=False):
        assert [numbers["norm"] for numbers in found] == pytest.approx(expected)
    assert told[4][-1]["nonfinite"] == 1


def test_some_steps_are_enough_for_what_is_asked_so(tmp_path):
    asked = sampled("gradient", "batch", CROSS_ENTROPY, "activation")
    states = frozenset({"gradient@backward"})
    kinds, calls = frozenset({"batch"}), frozenset({Families.MODULE, CROSS_ENTROPY})
    needs = Needs(stats=asked, states=states, kinds=kinds, calls=calls)
    steps = SCHEDULE.every + 2
    with recording(tmp_path / "some", needs=needs) as run:
        train(steps)
    due = {*range(SCHEDULE.first), SCHEDULE.every}
    assert steps_told(run) == dict.fromkeys(("gradient", "batch", "loss", "relu"), due)
    needs = needs | Needs(stats=frozenset({"gradient"}))  # another check needs them all
    with recording(tmp_path / "all", needs=needs) as run:
        train(steps)
    assert steps_told(run)["gradient"] == set(range(steps))
    assert steps_told(run)["batch"] == due


def steps_told(run):
    """Steps with numbers of each kind of tensor."""
    return {
        "gradient": {e.step for e in run.of("state") if e.summary is not None and e.summary.stats},
        "batch": {e.step for e in run.of("batch") if "stats" in e.leaves["batch[0]"]},
        "loss": {e.step for e in run.calls(CROSS_ENTROPY) if "stats" in e.args["input"]},
        "relu": {e.step for e in run.calls(RELU) if "stats" in e.result},
    }


def test_activations_bring_the_modules_that_name_them(tmp_path):
    needs = Needs(stats=frozenset({"activation"}), calls=frozenset({Families.MODULE}))
    with recording(tmp_path / "run", needs=needs) as run:
        train(SCHEDULE.first + 1)
    modules = {e.span: e.module for e in run.calls(Families.MODULE)}
    relus = run.calls(RELU)
    assert {modules[e.parent] for e in relus if "stats" in e.result} == {"Net.block"}
    assert set(modules.values()) == {"Net", "Net.act", "Net.block"}
    assert sum(1 for m in modules.values() if m == "Net.act") == SCHEDULE.first


@pytest.mark.parametrize("poison", [math.nan, math.inf])
def test_what_is_not_finite_is_counted_and_left_out(tmp_path, poison):
    with recording(tmp_path / "run") as run:
        train(1, poison=poison)
    inputs = next(iter(run.of("batch")[0].leaves.values()))["stats"]
    assert inputs["nonfinite"] == 1
    assert all(math.isfinite(number) for number in inputs.values())
    first = run.calls("torch.nn.modules.linear.Linear.forward")[0]
    assert first.result["stats"]["nonfinite"] > 0
    weight = next(e for e in run.of("state") if e.role == "gradient" and e.name == "Net.fc1.weight")
    assert weight.summary.stats["nonfinite"] > 0


ODD = {
    "empty": torch.zeros(0, 3),
    "sparse": torch.eye(3).to_sparse(),
    "complex": torch.zeros(3, 3, dtype=torch.complex64),
    "bool": torch.ones(3, dtype=torch.bool),
    "meta": torch.zeros(3, 3, device="meta"),
    "float8": torch.zeros(3, 3).to(torch.float8_e4m3fn),
}


@pytest.mark.parametrize("name", ODD)
def test_odd_tensors_are_left_alone(tmp_path, name):
    with recording(tmp_path / "run") as run:
        assert next(iter(DataLoader([ODD[name]], batch_size=None))) is ODD[name]
    assert "stats" not in run.of("batch")[0].leaves["batch"]
    assert norms_of([ODD[name]]) == [b""]


def test_nothing_is_taken_inside_a_transform(tmp_path):
    with recording(tmp_path / "run") as run:
        torch.func.vmap(F.relu)(torch.randn(3, 4))
        with FlopCounterMode(display=False):
            F.relu(torch.randn(3, 4))
        F.relu(torch.randn(3, 4))
    assert ["stats" in e.result for e in run.calls(RELU)] == [False, False, True]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_norms_are_taken_in_enough_precision(tmp_path, dtype):
    with recording(tmp_path / "run"):
        texts = norms_of([torch.full((2500,), 3000.0, dtype=dtype)])
    assert orjson.loads(texts[0]) == {"norm": pytest.approx(150000, rel=0.01), "nonfinite": 0}


def test_each_tensor_has_its_norm_whatever_stands_beside_it() -> None:
    learns = torch.full((4,), 2.0, requires_grad=True)
    broken = torch.tensor([3.0, math.inf, math.nan], requires_grad=True)
    alike = norms_of([learns, broken, learns])
    mixed = norms_of([torch.ones(9), *ODD.values(), learns, torch.ones(4).half(), broken])
    four, three = b'{"norm":4.0,"nonfinite":0}', b'{"norm":3.0,"nonfinite":2}'
    assert [orjson.loads(text) for text in alike] == list(map(orjson.loads, (four, three, four)))
    assert [orjson.loads(text) for text in mixed if text] == [
        {"norm": 3.0, "nonfinite": 0},
        {"norm": 4.0, "nonfinite": 0},
        {"norm": 2.0, "nonfinite": 0},
        {"norm": 3.0, "nonfinite": 2},
    ]
    assert mixed[1:-3] == [b""] * len(ODD)
    assert norms_of([]) == []


def test_numbers_on_a_device_are_read_when_the_records_are_written(tmp_path):
    with recording(tmp_path / "run") as run:
        em = run.session.local.em or run.session.emitter()
        em.event("mark", {"text": "before"})
        place = em.defer(lambda numbers: orjson.dumps({"sum": sum(numbers)}), torch.ones(3))
        line = b'{"k":"mark","n":%d,"t":1,"s":0,"g":"init","text":"late","data":%b}'
        em.append(line % (em.seq, place), em.seq)
        assert not any(b"late" in p.read_bytes() for p in run.folder.glob("*.jsonl"))
    assert run.marks("late")[0].data == {"sum": 3.0}


def test_units_that_are_off():
    x = torch.tensor([[-1.0, -2.0, 1.0, -50.0], [1.0, -1.0, 2.0, -60.0]])

    def dead(activation):
        function, kind = activation
        return round(
            4 * float(argument_stats.share_of_units(function(x), argument_stats.FUNCTIONS[kind])[2])
        )

    assert dead((F.relu, RELU)) == 2
    assert dead((F.leaky_relu, "torch.nn.functional.leaky_relu")) == 2
    assert dead((F.gelu, "torch.nn.functional.gelu")) == 1
    assert dead((F.elu, "torch.nn.functional.elu")) == 1
    images = torch.zeros(2, 3, 4, 4)
    images[:, 1, 0, 0] = 1
    shares = argument_stats.share_of_units(images, argument_stats.FUNCTIONS[RELU])
    assert float(shares[2]) == pytest.approx(2 / 3)


def test_analysis_knows_the_same_functions():
    assert set(argument_stats.FUNCTIONS) == ACTIVATION_FUNCTIONS


@pytest.mark.parametrize("name", ["relu", "relu_", "tanh", "tanh_", "sigmoid", "sigmoid_"])
def test_activations_that_are_called_as_methods_are_looked_at(tmp_path, name):
    plain = getattr(torch.ones(2, 3), name)()
    with recording(tmp_path / "run") as run:
        found = getattr(torch.ones(2, 3), name)()
    assert torch.equal(found, plain)
    (call,) = run.calls(f"torch.Tensor.{name}")
    assert call.result["stats"]["max"] == pytest.approx(float(plain.max()))


@pytest.mark.parametrize(("scale", "told"), [(1, SCHEDULE.first), (255, 0)])
def test_first_layers_tell_only_of_what_may_be_bytes(tmp_path, scale, told):
    needs = Needs(stats=frozenset({"input"}), calls=frozenset({Families.BACKWARD}))
    net = nn.Sequential(nn.Conv2d(3, 2, 3), nn.Flatten(), nn.Linear(72, 4))
    with recording(tmp_path / "run", needs=needs) as run:
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
        for _ in range(SCHEDULE.first + 2):
            optimizer.zero_grad()
            images = torch.randint(0, 255, (8, 3, 8, 8)).float()
            net(images / scale).logsumexp(1).mean().backward()
            optimizer.step()
    layers = run.calls("torch.nn.modules.conv.Conv2d.forward") + run.calls(
        "torch.nn.modules.linear.Linear.forward"
    )
    assert len(layers) == told
    assert all(set(call.args["0"]["stats"]) == {"min", "max"} for call in layers)


AHEAD = torch.ones(6, 6, dtype=torch.bool).triu(1)
PADDING = torch.arange(6) > 3


@pytest.mark.parametrize(
    ("mask", "told"),
    [
        (lambda x: x.masked_fill(AHEAD, -torch.inf), 1.0),
        (lambda x: x - 100 * AHEAD, 1.0),  # large enough
        (lambda x: x.masked_fill(PADDING, -torch.inf), 9 / 15),
        (lambda x: x, 0.0),
        (lambda x: x[..., :5], None),  # keys of something else
        (lambda x: x[0, 0], None),  # classes of samples
        (lambda x: x[:0], None),
        (lambda x: x.detach(), None),
    ],
)
@pytest.mark.parametrize("name", _SOFTMAXES)
def test_what_weights_of_attention_leave_out(tmp_path, name, mask, told):
    scores = torch.randn(2, 3, 6, 6, requires_grad=True)
    with recording(tmp_path / "run") as run:
        optimizer = torch.optim.SGD([scores], 0.1)
        for _ in range(8):
            optimizer.zero_grad()
            _SOFTMAXES[name](mask(scores))
            scores.sum().backward()
            optimizer.step()
    found = [call.result.get("stats", {}).get("hidden") for call in run.calls(name)]
    expected = None if told is None else pytest.approx(told)
    assert len(found) == 8
    assert all(value == expected for value in found[:4])
    assert set(found[4:]) == {None}  # no sampled steps


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype")
@pytest.mark.filterwarnings("ignore:There is a performance drop because:UserWarning")
def test_masks_of_attention(tmp_path):
    """Nothing is asked of tensors that have no sizes, or are within torch.func."""
    keep = torch.eye(6, dtype=torch.bool)
    rows = torch.randn(2, 1, 6, 8)
    nested = torch.nested.nested_tensor([rows[0], rows[1, :, :3]])
    with recording(tmp_path / "run") as run:
        attend = F.scaled_dot_product_attention
        attend(rows, rows, rows, attn_mask=keep)
        attend(nested, nested, nested)
        torch.func.vmap(lambda x: attend(x, x, x, attn_mask=keep))(rows)
    calls = run.calls("torch.nn.functional.scaled_dot_product_attention")
    told = [(call.args.get("attn_mask") or {}).get("stats") for call in calls]
    assert told == [{"zeros": pytest.approx(5 / 6)}, None, None]


def test_of_long_texts_the_first_positions_are_looked_at(tmp_path):
    later = torch.ones(300, 300, dtype=torch.bool).triu(1)
    later[:, 256:] = False
    scores = torch.randn(2, 3, 300, 300, requires_grad=True)
    with recording(tmp_path / "run") as run:
        optimizer = torch.optim.SGD([scores], 0.1)
        F.softmax(scores.masked_fill(later, -torch.inf), -1).sum().backward()
        optimizer.step()
    (call,) = run.calls("torch.nn.functional.softmax")
    assert call.result["stats"] == {"hidden": 1.0}


class OneBuffer(torch.utils.data.Dataset):
    """Hands out the same tensor for each index."""

    def __init__(self, copies):
        self.buffer, self.copies = torch.zeros(4, 4), copies

    def __len__(self):
        return 16

    def __getitem__(self, index):
        self.buffer.copy_(torch.arange(16.0).view(4, 4) + index)
        return (self.buffer.clone() if self.copies else self.buffer), index


@pytest.mark.parametrize(("copies", "alike"), [(False, 1), (True, 1 / 8)])
def test_rows_of_a_batch_are_compared(tmp_path, copies, alike):
    needs = Needs(kinds=frozenset({"batch"}), stats=frozenset({"batch"}))
    with recording(tmp_path / "run", needs=needs) as run:
        list(DataLoader(OneBuffer(copies), batch_size=8))
    pictures = [batch.leaves["batch[0]"]["stats"]["alike"] for batch in run.of("batch")]
    assert pictures == [alike, alike]
    assert "alike" not in run.of("batch")[0].leaves["batch[1]"]["stats"]


class Named(torch.Tensor):
    """As fastai's and MONAI's: nothing but a name."""


class Odd(torch.Tensor):
    """One that looks after itself."""

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        raise AssertionError("it is not to be looked at")


@pytest.mark.parametrize("cls", [Named, torch.Tensor])
def test_what_a_loss_is_given_as_a_subclass_of_tensors(tmp_path, cls):
    x = torch.randn(4, 6).as_subclass(cls)
    with recording(tmp_path / "run") as run:
        F.cross_entropy(Net()(x), torch.arange(4))
    (call,) = [e for e in of(run.events, "call") if e.api == CROSS_ENTROPY]
    assert {"min", "max"} <= call.args["input"]["stats"].keys()


def test_subclasses_with_a_dispatch_of_their_own_are_left_alone():
    value = torch.Tensor._make_subclass(Odd, torch.zeros(4))
    assert argument_stats.as_plain(value) is None


def test_numbers_of_a_batch_are_not_saved_for_a_backward_pass() -> None:
    """Within a recomputation, torch.utils.checkpoint counts the tensors that are saved."""
    saved: list[torch.Tensor] = []
    constant = torch.ones(8, requires_grad=True) * 2
    counted = torch.arange(8.0, requires_grad=True) + 0
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        assert argument_stats.is_plain(constant)
        assert argument_stats.is_plain(counted)
        assert not argument_stats.is_plain(counted * 3)
        control = (counted * counted).sum()
    assert control.requires_grad
    assert len(saved) == 2
