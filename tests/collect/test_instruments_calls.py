"""Calls of modules and functions as they are recorded: names, arguments, context, nesting."""

from __future__ import annotations

import sys
import threading

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.collect.recording import recording
from traincheck.collect.active_session import CURRENT
from traincheck.collect.instruments._wrap import CallTemplates, function_wrapper
from traincheck.collect.tensors.summarize import encode
from traincheck.schema.claims import Needs
from traincheck.schema.torch_api import Families

X = {"dtype": "float32", "shape": [2, 3], "device": "cpu"}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(3, 3)
        self.last = nn.Linear(3, 3)

    def forward(self, x, scale=1.0):
        return self.last(F.relu(self.first(x))) * scale


class Broken(nn.Module):
    def __init__(self):
        super().__init__()
        self.part = Net()

    def forward(self, x):
        self.part(x)
        raise KeyError("missing")


def modules(run):
    return [(e.module, e.root, e.training) for e in run.calls(Families.MODULE)]


# -- modules


def test_a_call_of_a_model_and_its_parts(tmp_path):
    with recording(tmp_path) as run:
        model = Net()
        model(torch.zeros(2, 3), scale=2.0)
    assert modules(run) == [
        ("Net.first", False, True),
        ("Net.last", False, True),
        ("Net", True, True),
    ]
    first, last, root = run.calls(Families.MODULE)
    assert root.api == f"{__name__}.Net.forward"
    assert first.api == "torch.nn.modules.linear.Linear.forward"
    assert first.parent == last.parent == root.span
    assert root.parent is None
    assert root.args == {"0": X, "scale": 2.0}
    assert root.result == {**X, "requires_grad": True}
    assert root.start_ns <= first.start_ns <= first.time_ns <= root.time_ns


def test_the_mode_of_a_wrapped_model_is_its_own(tmp_path):
    """`wrapper.module.eval()` leaves the flag of the wrapper as it was."""
    with recording(tmp_path) as run:
        wrapper = nn.DataParallel(Net())
        wrapper.module.eval()
        wrapper(torch.zeros(2, 3)).sum().backward()
        wrapper.train()
        wrapper(torch.zeros(2, 3)).sum().backward()
    roots = [e for e in run.calls(Families.MODULE) if e.root]
    assert [(e.module, e.training) for e in roots] == [("Net", False), ("Net", True)]


def test_evaluation_is_told_from_training(tmp_path):
    with recording(tmp_path) as run:
        model = Net()
        model(torch.zeros(2, 3))
        model.eval()
        with torch.no_grad():
            model(torch.zeros(2, 3))
        with torch.inference_mode():
            model(torch.zeros(2, 3))
        model.train()
        model(torch.zeros(2, 3))
    roots = [e for e in run.calls(Families.MODULE) if e.root]
    assert [(e.training, e.grad_enabled, e.stage) for e in roots] == [
        (True, True, "train"),
        (False, False, "eval"),
        (False, False, "eval"),
        (True, True, "train"),
    ]
    assert [(e.previous, e.stage) for e in run.of("stage")] == [
        ("init", "train"),
        ("train", "eval"),
        ("eval", "train"),
    ]


def test_autocast_is_part_of_the_context(tmp_path):
    with recording(tmp_path) as run:
        model = Net()
        model(torch.zeros(2, 3))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            model(torch.zeros(2, 3))
            F.relu(torch.zeros(2))
    assert [e.autocast for e in run.calls(Families.MODULE)] == [None] * 3 + ["bfloat16"] * 3
    assert run.calls("torch.nn.functional.relu")[-1].autocast == "bfloat16"


def test_an_exception_closes_the_span(tmp_path):
    with recording(tmp_path) as run:
        model = Broken()
        with pytest.raises(KeyError):
            model(torch.zeros(2, 3))
        Net()(torch.zeros(2, 3))
    broken = run.calls(f"{__name__}.Broken.forward")
    assert [(e.exception, e.result, e.root) for e in broken] == [("KeyError", None, True)]
    after = run.calls(f"{__name__}.Net.forward")[-1]
    assert (after.exception, after.root, after.parent) == (None, True, None)
    assert {e.exception for e in run.of("call")} == {None, "KeyError"}


def test_modules_made_on_the_fly(tmp_path):
    class Fly(nn.Module):
        def forward(self, x):
            self.kept = getattr(self, "kept", None) or nn.Linear(3, 3)
            return nn.Identity()(self.kept(x))

    with recording(tmp_path) as run:
        model = Fly()
        model(torch.zeros(2, 3))
        model(torch.zeros(2, 3))
    assert [e.module for e in run.calls(Families.MODULE)] == ["Fly.kept", None, "Fly"] * 2
    new = [e.name for e in run.of("state") if e.change == "new"]
    assert new == ["Fly.kept.weight", "Fly.kept.bias"]


def test_hooks_and_containers_of_modules(tmp_path):
    seen = []
    with recording(tmp_path) as run:
        model = nn.ModuleDict({"a": nn.Linear(3, 3)})
        model["a"].register_forward_hook(lambda *_: seen.append("hook"))
        model["a"](torch.zeros(2, 3))
    assert seen == ["hook"]
    assert len(run.calls(Families.MODULE)) == 1


def test_a_thread_has_a_stack_of_its_own(tmp_path):
    """Its calls are in another stream and are nobody's children."""
    with recording(tmp_path) as run:

        class Starter(nn.Module):
            def forward(self, x):
                thread = threading.Thread(target=F.relu, args=(x,))
                thread.start()
                thread.join()
                return F.relu(x)

        Starter()(torch.zeros(2, 3))
    relus = run.calls("torch.nn.functional.relu")
    root = run.calls(Families.MODULE)[-1]
    assert sorted(e.stream.rpartition("-t")[2] for e in relus) == ["0", "1"]
    assert {e.stream.rpartition("-t")[2]: e.parent for e in relus} == {"0": root.span, "1": None}
    assert len({e.span for e in run.of("call")}) == 3


def test_only_the_modules_that_are_needed(tmp_path):
    needs = Needs(calls=frozenset({"torch.nn.modules.linear.Linear.forward"}))
    with recording(tmp_path / "one", needs=needs) as run:
        Net()(torch.zeros(2, 3))
    assert [e.module for e in run.of("call")] == ["Net.first", "Net.last"]
    needs = Needs(calls=frozenset({Families.MODULE}))  # the family: root calls
    with recording(tmp_path / "two", needs=needs) as run:
        Net()(torch.zeros(2, 3))
    assert [e.module for e in run.of("call")] == ["Net"]


# -- functions


def test_defaults_are_filled_in(tmp_path):
    with recording(tmp_path) as run:
        x = torch.zeros(2, 3)
        F.dropout(x)
        F.dropout(x, 0.3, training=False)
        F.gelu(x)
        F.gelu(x, approximate="tanh")
    found = [{k: v for k, v in e.args.items() if k != "input"} for e in run.of("call")]
    assert found == [
        {"p": 0.5, "training": True, "inplace": False},
        {"p": 0.3, "training": False, "inplace": False},
        {"approximate": "none"},
        {"approximate": "tanh"},
    ]
    assert all(e.args["input"] == X for e in run.of("call"))


@pytest.mark.parametrize(
    "call",
    [
        lambda x: (F.dropout(x, 0.5, True, False), F.dropout(inplace=False, input=x, p=0.5)),
        lambda x: (F.linear(x, x), F.linear(weight=x, input=x)),
        lambda x: (F.softmax(x, 1), F.softmax(dim=1, input=x)),
        lambda x: (F.cross_entropy(x, x), F.cross_entropy(target=x, input=x)),
        lambda x: (F.relu(x), F.relu(input=x)),
        lambda x: (torch.softmax(x, 1), torch.softmax(dim=1, input=x)),
        lambda x: (torch.matmul(x, x.T), torch.matmul(other=x.T, input=x)),
        lambda x: (
            F.avg_pool1d(x, 2, 1),
            F.avg_pool1d(stride=1, input=x, kernel_size=2),
        ),
        lambda x: (
            F.scaled_dot_product_attention(x, x, x, None, 0.0),
            F.scaled_dot_product_attention(value=x, key=x, query=x, attn_mask=None, dropout_p=0.0),
        ),
    ],
)
def test_position_and_keyword_have_the_same_name(tmp_path, call):
    with recording(tmp_path) as run:
        call(torch.zeros(2, 3))
    one, other = run.of("call")
    assert one.args == other.args
    assert not any(name.isdigit() for name in one.args)


@pytest.mark.parametrize(
    ("args", "kwargs", "told"),
    [
        ((), {}, {"p": 0.5}),
        ((1,), {}, {"100%": 1, "p": 0.5}),
        ((1, 2), {}, {"100%": 1, "p": 2}),
        ((1,), {"p": 3}, {"100%": 1, "p": 3}),
        ((), {"p": 3}, {"p": 3}),
        ((), {"100%": 1}, {"100%": 1, "p": 0.5}),
        ((1, 2, 3), {"b": 4}, {"100%": 1, "p": 2, "2": 3, "b": 4}),
    ],
)
@pytest.mark.parametrize("is_encoded", [False, True], ids=["plainly", "by a function"])
def test_arguments_of_a_record(tmp_path, args, kwargs, told, is_encoded):
    def function(*args, **kwargs):
        return None

    with recording(tmp_path) as run:
        session = CURRENT.session
        templates = CallTemplates("a.function", ("100%", "p"), {"p": 0.5}, owner=None)
        argument = (lambda em: encode) if is_encoded else None
        wrapped = function_wrapper(function, templates, session, argument=argument)
        wrapped(*args, **kwargs)
    assert [call.args for call in run.calls("a.function")] == [told]


def test_more_arguments_than_names_are_numbered(tmp_path):
    with recording(tmp_path) as run:
        torch.einsum("ij,kj->ik", torch.zeros(2, 3), torch.zeros(2, 3))
    (call,) = run.of("call")
    assert list(call.args.values()) == ["ij,kj->ik", X, X]
    assert len(call.args) == 3


def test_what_a_function_calls_inside_is_its_own_business(tmp_path):
    """F.relu ends in torch.relu: one call of the user's is one record."""
    with recording(tmp_path) as run:
        F.relu(torch.zeros(3))
        F.softmax(torch.zeros(3), dim=0)
        torch.relu(torch.zeros(3))
    assert [e.api for e in run.of("call")] == [
        "torch.nn.functional.relu",
        "torch.nn.functional.softmax",
        "torch.relu",
    ]


def test_functions_that_call_functions_are_nested(tmp_path):
    with recording(tmp_path) as run:
        F.cross_entropy(torch.zeros(2, 3), torch.tensor([0, 1]))
        F.gumbel_softmax(torch.zeros(2, 3))
    spans = {e.span: e.api for e in run.of("call")}
    parents = {(e.api, spans.get(e.parent)) for e in run.of("call")}
    assert ("torch.nn.functional.cross_entropy", None) in parents
    assert all(parent in (None, "torch.nn.functional.gumbel_softmax") for _, parent in parents)


def test_operators_at_level_deep(tmp_path):
    def work():
        x = torch.ones(3)
        return F.relu(x + 1).sum()

    with recording(tmp_path / "deep", level="deep") as run:
        work()
    deep = [e.api for e in run.of("call")]
    with recording(tmp_path / "default") as run:
        work()
    assert [e.api for e in run.of("call")] == ["torch.nn.functional.relu"]
    assert "torch.Tensor.__add__" in deep or "torch.Tensor.add" in deep
    assert "torch.relu" in deep
    assert "torch.Tensor.sum" in deep


def test_initialisation_is_recorded(tmp_path):
    with recording(tmp_path) as run:
        nn.init.xavier_uniform_(torch.empty(2, 3), gain=2.0)
    call = run.calls("torch.nn.init.xavier_uniform_")[0]
    assert call.args["gain"] == 2.0


def test_only_the_functions_that_are_needed(tmp_path):
    relu = F.relu
    needs = Needs(calls=frozenset({"torch.nn.functional.dropout"}))
    with recording(tmp_path, needs=needs) as run:
        assert F.relu is relu
        F.relu(torch.zeros(3))
        F.dropout(torch.zeros(3))
    assert [e.api for e in run.of("call")] == ["torch.nn.functional.dropout"]


def test_a_function_keeps_name_and_documentation(tmp_path):
    before = (F.relu.__name__, F.relu.__doc__, F.relu.__module__)
    with recording(tmp_path):
        assert (F.relu.__name__, F.relu.__doc__, F.relu.__module__) == before
        assert F.scaled_dot_product_attention.__doc__


# -- modes


def test_only_the_outermost_switch_is_recorded(tmp_path):
    with recording(tmp_path) as run:
        model = Net()
        model.eval()
        model.train()
        model.train(False)
        model.train(mode=True)
        model.first.eval()
    calls = [*run.calls(Families.TRAIN), *run.calls(Families.EVAL)]
    calls.sort(key=lambda e: e.seq)
    assert [(e.api, e.module) for e in calls] == [
        (Families.EVAL, "Net"),
        (Families.TRAIN, "Net"),
        (Families.EVAL, "Net"),
        (Families.TRAIN, "Net"),
        (Families.EVAL, "Net.first"),
    ]
    assert all(e.where.rpartition(":")[0] == __file__ for e in calls)


def test_a_train_of_the_users_own_is_one_switch(tmp_path):
    """Frozen BatchNorm: train() calls the parent's and then eval() of a part."""

    class Frozen(Net):
        def train(self, mode=True):
            super().train(mode)
            self.first.eval()
            return self

    with recording(tmp_path) as run:
        model = Frozen()
        model.train()
        assert not model.first.training
    assert [e.api for e in run.of("call") if e.api == Families.TRAIN] == [Families.TRAIN]


# -- packages of the user


@pytest.fixture
def package(tmp_path, monkeypatch):
    folder = tmp_path / "lib" / "mine_to_record"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("from mine_to_record.losses import loss\n")
    (folder / "losses.py").write_text(
        "import torch\n\n"
        "def loss(x, scale=2.0):\n    return _inner(x) * scale\n\n"
        "def _inner(x):\n    return x.sum()\n\n"
        "class Meter:\n    def add(self, value):\n        return value\n\n"
        "    def _private(self):\n        return 1\n"
    )
    monkeypatch.syspath_prepend(folder.parent)
    yield "mine_to_record"
    for name in [n for n in sys.modules if n.startswith("mine_to_record")]:
        del sys.modules[name]


@pytest.mark.parametrize("imported_before", [False, True])
def test_public_functions_of_a_named_package(tmp_path, package, imported_before):
    if imported_before:
        import mine_to_record  # noqa: F401
    with recording(tmp_path / "run", instrument=(package,)) as run:
        from mine_to_record.losses import Meter, loss

        loss(torch.ones(3))
        loss(x=torch.ones(3), scale=3.0)
        Meter().add(1)
        Meter()._private()
    calls = [e for e in run.of("call") if e.api.startswith(package)]
    assert [e.api for e in calls] == [
        "mine_to_record.losses.loss",
        "mine_to_record.losses.loss",
        "mine_to_record.losses.Meter.add",
    ]
    assert [e.args.get("scale") for e in calls] == [2.0, 3.0, None]


def test_a_package_that_is_not_named_is_left_alone(tmp_path, package):
    with recording(tmp_path / "run", instrument=("another",)) as run:
        from mine_to_record.losses import loss

        assert not hasattr(loss, "__wrapped__")
        loss(torch.ones(3))
    assert not [e for e in run.of("call") if e.api.startswith(package)]


# -- functions that depend on the mode


class Dropping(nn.Module):
    def __init__(self):
        super().__init__()
        self.part, self.drop = nn.Linear(3, 3), nn.Dropout(0.5)

    def forward(self, x):
        return F.dropout(self.drop(self.part(x)))


def test_dropout_tells_the_module_around_and_its_mode(tmp_path):
    with recording(tmp_path) as run:
        model = Dropping()
        model(torch.zeros(2, 3))
        model.drop.eval()
        model(torch.zeros(2, 3))
        model.eval()
        model(torch.zeros(2, 3))
        F.dropout(torch.zeros(3))
    found = [
        (e.module, e.training, e.args["training"]) for e in run.calls("torch.nn.functional.dropout")
    ]
    assert found == [
        ("Dropping.drop", True, True),
        ("Dropping", True, True),
        ("Dropping.drop", False, False),
        ("Dropping", True, True),
        ("Dropping.drop", False, False),
        ("Dropping", False, True),
        (None, None, True),
    ]


class Subclass(torch.Tensor):
    """As are those of fastai and MONAI: torch hands their calls back to itself."""


def test_a_call_with_a_subclass_of_tensors_is_one_call(tmp_path):
    with recording(tmp_path) as run:
        x = torch.ones(4, 3).as_subclass(Subclass)
        loss = F.cross_entropy(
            F.batch_norm(nn.Linear(3, 2)(x), None, None, training=True), torch.zeros(4).long()
        )
        F.relu(loss)
        torch.matmul(x, x.T)
    assert isinstance(loss, Subclass)
    for api in (
        "nn.functional.batch_norm",
        "nn.functional.cross_entropy",
        "nn.functional.linear",
        "nn.functional.relu",
        "matmul",
    ):
        assert len(run.calls(f"torch.{api}")) == 1


class TakesLabels(nn.Module):
    def forward(self, ids, labels, weights=None):
        return ids.float().mean()


def test_whole_numbers_that_may_be_the_same_are_told_apart(tmp_path):
    ids, floats = torch.arange(6).view(2, 3), torch.ones(2, 3)
    with recording(tmp_path) as run:
        model = TakesLabels()
        model(ids, labels=ids.clone(), weights=floats)
        model(ids, ids + 1)
        model(ids, ids[:, :2])
    one, two, three = (call.args for call in run.calls(Families.MODULE))
    assert one["0"]["fingerprint"] == one["labels"]["fingerprint"]
    assert two["0"]["fingerprint"] != two["1"]["fingerprint"]
    assert not any("fingerprint" in value for value in (one["weights"], *three.values()))
