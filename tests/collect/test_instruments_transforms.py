"""Models can still be copied, pickled, scripted, traced, exported and compiled while recorded."""

from __future__ import annotations

import copy
import io
import pickle

import pytest
import torch
import torch._dynamo
import torch.nn.functional as F
from torch import nn
from torch._dynamo.testing import CompileCounter
from torch._dynamo.utils import counters

from tests.collect.recording import recording
from traincheck.schema.torch_api import Families

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*torch.jit.* is deprecated"),
    pytest.mark.filterwarnings("ignore:.*enable_nested_tensor"),
    pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors"),
]


class Net(nn.Module):
    """Holds functions as attributes, as many models do."""

    def __init__(self, act=F.relu):
        super().__init__()
        self.layer = nn.Linear(3, 3)
        self.norm = nn.BatchNorm1d(3)
        self.act = act
        self.drop = nn.Dropout(0.1)

    def forward(self, x):
        return self.drop(self.act(self.norm(self.layer(x))))


class Plain(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x):
        return F.relu(self.layer(x)) + F.softmax(x, dim=-1)


def relu_of_the_user(x):
    return F.relu(x)


X = torch.linspace(-1, 1, 6).view(2, 3)


def net(act=F.relu):
    torch.manual_seed(0)
    return Net(act).eval()


# -- copies


def test_a_model_with_functions_is_copied_and_pickled(tmp_path):
    with recording(tmp_path):
        model = net(F.relu)
        copied = copy.deepcopy(model)
        text = pickle.dumps(model)
        inside = pickle.loads(text)
        file = io.BytesIO()
        torch.save(model, file)
        expected = model(X)
        assert all(torch.equal(m(X), expected) for m in (copied, inside))
    outside = pickle.loads(text)
    file.seek(0)
    saved = torch.load(file, weights_only=False)
    assert all(torch.equal(m(X), expected) for m in (outside, saved, copied))
    assert b"traincheck" not in text
    assert outside.act is F.relu


def test_functions_are_pickled_by_name(tmp_path):
    functions = [F.relu, F.dropout, F.scaled_dot_product_attention, torch.matmul, nn.init.ones_]
    with recording(tmp_path):
        text = pickle.dumps(
            [F.relu, F.dropout, F.scaled_dot_product_attention, torch.matmul, nn.init.ones_]
        )
        assert pickle.loads(text)[0] is F.relu
    assert pickle.loads(text) == functions


# -- TorchScript, fx, export


def scripted():
    return torch.jit.script(Plain())


def scripted_with_function():
    return torch.jit.script(relu_of_the_user)


def scripted_builtin():
    return torch.jit.script(F.relu)


def traced():
    return torch.jit.trace(Plain(), X)


def symbolically_traced():
    return torch.fx.symbolic_trace(Plain())


def exported():
    return torch.export.export(Plain(), (X,)).module()


@pytest.mark.parametrize(
    "transform",
    [scripted, scripted_with_function, scripted_builtin, traced, symbolically_traced, exported],
)
def test_transformed_code_is_the_same(tmp_path, transform):
    def text(made):
        return made.code if isinstance(made, torch.fx.GraphModule) else str(made.graph)

    torch.manual_seed(0)
    plain = transform()
    with recording(tmp_path) as run:
        torch.manual_seed(0)
        made = transform()
        result = made(X)
        F.relu(X)
    assert torch.equal(result, plain(X))
    if transform is not traced:  # numbers of its nodes go on in a process
        assert text(made) == text(plain)
    assert run.calls("torch.nn.functional.relu")[-1].parent is None
    assert not [e for e in run.of("state") if e.change == "content"]


def test_an_fx_graph_holds_the_originals(tmp_path):
    relu = F.relu
    with recording(tmp_path):
        graph = torch.fx.symbolic_trace(Plain()).graph
        targets = [node.target for node in graph.nodes if node.op == "call_function"]
    assert relu in targets
    assert not any(hasattr(t, "__wrapped__") and t is not relu for t in targets if t is relu)


def test_a_scripted_model_in_a_training_loop(tmp_path):
    with recording(tmp_path) as run:
        model = torch.jit.script(Plain())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            optimizer.zero_grad()
            model(X).sum().backward()
            optimizer.step()
    assert [e.step for e in run.of("step")] == [0, 1]
    assert len(run.calls(Families.OPTIMIZER_STEP)) == 2
    changed = {n for n, change in run.changes("parameter") if change == "content"}
    assert {name.partition(".")[2] for name in changed} == {"layer.weight", "layer.bias"}


# -- compile


def compiled_frames():
    torch._dynamo.reset()
    counters.clear()
    counter = CompileCounter()
    torch.manual_seed(0)
    model = nn.Sequential(Net(), nn.Linear(3, 1))
    step = torch.compile(model, backend=counter, fullgraph=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(4):
        optimizer.zero_grad()
        step(X).sum().backward()
        optimizer.step()
    weights = torch.cat([p.detach().flatten() for p in model.parameters()])
    breaks = dict(counters["graph_break"])
    return counter.frame_count, counter.op_count, breaks, weights


def test_compiling_meets_nothing_of_ours(tmp_path):
    plain = compiled_frames()
    with recording(tmp_path) as run:
        traced = compiled_frames()
    assert traced[:3] == plain[:3]
    assert traced[0] == 1
    assert traced[2] == {}
    assert torch.equal(traced[3], plain[3])
    roots = [e for e in run.calls(Families.MODULE) if e.root]
    assert len(roots) == 4, "a compiled region is recorded at its edges"
    assert [e.step for e in run.of("step")] == [0, 1, 2, 3]
    changed = {n for n, change in run.changes("parameter") if change == "content"}
    assert "Sequential.1.weight" in changed


def test_functions_compile_whole(tmp_path):
    def work(x):
        return F.softmax(F.relu(x) @ x.T, dim=-1).sum()

    with recording(tmp_path):
        torch._dynamo.reset()
        counters.clear()
        made = torch.compile(work, backend="eager", fullgraph=True)
        for _ in range(3):
            found = made(X)
        assert counters["graph_break"] == {}
        assert counters["stats"]["unique_graphs"] == 1
    assert torch.equal(found, work(X))


# -- identity of functions


@pytest.mark.parametrize("activation", ["relu", "gelu", "F.relu", "F.gelu", "default"])
def test_the_fast_path_of_the_encoder_layer_stays(tmp_path, activation):
    def flags():
        chosen = {"F.relu": F.relu, "F.gelu": F.gelu}.get(activation, activation)
        more = {} if activation == "default" else {"activation": chosen}
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, **more)
        return layer.activation_relu_or_gelu

    plain = flags()
    assert plain in (1, 2)
    with recording(tmp_path):
        assert flags() == plain
    assert flags() == plain


@pytest.mark.parametrize("enable", [False, True])
def test_a_transformer_computes_the_same(tmp_path, enable):
    def outputs():
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=enable)
        x = torch.randn(3, 4, 8)
        mask = torch.zeros(3, 4, dtype=torch.bool)
        mask[:, 3:] = True
        train = model(x)
        with torch.no_grad():
            return train, model.eval()(x, src_key_padding_mask=mask)

    plain = outputs()
    with recording(tmp_path):
        traced = outputs()
    assert all(torch.equal(one, other) for one, other in zip(plain, traced))


def test_function_modes_and_vmap_work(tmp_path):
    def work():
        per_sample = torch.func.vmap(torch.func.grad(lambda w, x: F.relu(w * x).sum()), (None, 0))
        model = Plain()
        parameters = dict(model.named_parameters())
        torch.manual_seed(0)
        called = torch.func.functional_call(
            model, {k: torch.ones_like(p) for k, p in parameters.items()}, (X,)
        )
        return per_sample(torch.ones(3), X), called

    plain = work()
    with recording(tmp_path):
        traced = work()
    assert all(torch.equal(one, other) for one, other in zip(plain, traced))


@pytest.mark.parametrize("level", ["default", "deep"])
def test_checkpointing_of_activations(tmp_path, level):
    from torch.utils.checkpoint import checkpoint

    def gradient():
        model = net()
        x = X.clone().requires_grad_(True)
        checkpoint(model, x, use_reentrant=False).sum().backward()
        return x.grad

    plain = gradient()
    with recording(tmp_path, level=level) as run:
        assert torch.equal(gradient(), plain)
    assert len([e for e in run.of("step")]) <= 1


def test_a_model_that_holds_a_builtin_is_scripted_as_without_us(tmp_path):
    """Of ``F.gelu`` there is no source to compile: TorchScript knows the builtin itself."""
    expected = torch.jit.script(net(F.gelu))(X)
    with recording(tmp_path) as run:
        model = nn.Sequential(net(F.gelu))
        held = model[0].act
        assert torch.equal(torch.jit.script(model)(X), expected)
        assert model[0].act is held  # as the user set it
        with pytest.raises(RuntimeError):  # the twin: what cannot be scripted still cannot
            torch.jit.script(net(lambda x: object()))
        model(X)
    assert run.calls("torch.nn.functional.gelu")
