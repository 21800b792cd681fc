"""What every instrument promises: originals come back, results and exceptions pass through as they
are, and a failure of ours stays ours."""

from __future__ import annotations

import ast
import contextlib
import copy
import inspect
import io
import itertools
import os
import pickle
import re
import sys
import types
import typing
import warnings
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.utils._device import _device_constructors
from torch.utils.data import DataLoader, Dataset

from tests.collect.recording import recording
from traincheck import collect
from traincheck.collect.instruments import registry
from traincheck.collect.instruments.functional import Functional
from traincheck.collect.instruments.registry import INSTRUMENTS
from traincheck.collect.launch.settings import Settings
from traincheck.collect.session.faults import MAX_FAULTS
from traincheck.collect.session.session import Session
from traincheck.collect.trace_writer import emitter
from traincheck.schema.metrics.requests import SUBJECTS, MetricRequest, MonitorView


def _request(on: str) -> MetricRequest:
    return MetricRequest(on=on, statistics=("entropy" if on == "attention" else "rms",))


NAMES = [instrument.name for instrument in INSTRUMENTS]


class UsersError(Exception):
    """An exception with its own kind of arguments."""


class Net(nn.Module):
    def __init__(self, breaks=False):
        super().__init__()
        self.layer = nn.Linear(3, 3)
        self.drop = nn.Dropout(0.5)
        self.breaks = breaks

    def forward(self, x):
        if self.breaks:
            raise UsersError("in forward", 3)
        return self.drop(self.layer(x))


class Rows(Dataset):
    def __init__(self, breaks=False):
        self.breaks = breaks

    def __len__(self):
        return 6

    def __getitem__(self, index):
        if self.breaks:
            raise UsersError("in a dataset", index)
        return torch.full((2,), float(index))


def stepped(breaks=False):
    model = Net()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=2)

    def closure():
        if breaks:
            raise UsersError("in a closure", 1)
        optimizer.zero_grad()
        loss = model(torch.ones(2, 3)).pow(2).sum()
        loss.backward()
        return loss

    loss = optimizer.step(closure)
    return [loss, *model.parameters()]


def adam(breaks=False):
    model = Net()
    optimizer = torch.optim.Adam(model.layer.parameters())
    model(torch.ones(2, 3)).sum().backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=False)
    if breaks:
        optimizer.add_param_group({"params": "none"})
    optimizer.add_param_group({"params": [nn.Parameter(torch.ones(1))]})
    model.zero_grad()
    return list(model.parameters())


def scaled(breaks=False):
    model, scaler = Net(), torch.amp.GradScaler("cpu")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if breaks:
        scaler.step(optimizer)
    scaler.scale(model(torch.ones(2, 3)).sum()).backward()
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()
    return [scaler.get_scale(), *model.parameters()]


def scheduled(breaks=False):
    optimizer = torch.optim.SGD(Net().parameters(), lr=0.1)

    def rate(epoch):
        if breaks and epoch:
            raise UsersError("in a schedule", epoch)
        return 0.5**epoch

    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)
    optimizer.step()
    scheduler.step()
    return [optimizer.param_groups[0]["lr"]]


def clipped(breaks=False):
    model = Net()
    model(torch.ones(2, 3)).sum().backward()
    if breaks:
        torch.nn.utils.clip_grad_norm_(model.parameters(), "large")
    total = torch.nn.utils.clip_grad_norm_((p for p in model.parameters()), 0.1)
    torch.nn.utils.clip_grad_value_(model.parameters(), 0.01)
    return [total, *(p.grad for p in model.parameters())]


def switched(breaks=False):
    model = Net()
    if breaks:
        model.train("yes")
    return [model.eval() is model, model.layer.training, model.train().layer.training]


def loaded(breaks=False):
    return list(DataLoader(Rows(breaks), batch_size=2, shuffle=True))


def seeded(breaks=False):
    torch.manual_seed("seed" if breaks else 3)
    return [torch.rand(3)]


def rewound(breaks=False):
    state = torch.get_rng_state()
    torch.set_rng_state("state" if breaks else state)
    return [torch.rand(3)]


def saved(breaks=False):
    model, other, file = Net(), Net(), io.BytesIO()
    optimizer = torch.optim.Adam(model.parameters())
    torch.save(model.state_dict(), file)
    file.seek(0)
    state = torch.load(file, weights_only=True)
    if breaks:
        del state["layer.weight"]
    keys = other.load_state_dict(state)
    optimizer.load_state_dict(optimizer.state_dict())
    return [str(keys), *other.parameters()]


# Kept for good: the destructor of a group waits, with the GIL held, for its threads, and one of
# these may wait for the GIL to let go of a tensor (pytorch/pytorch#56297). When the process ends
# they have long been idle.
_GROUPS = []


def reduced(breaks=False):
    tensor = torch.ones(2)
    if breaks:
        dist.all_reduce(tensor)  # there is no group
    store = dist.HashStore()
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    _GROUPS.append(dist.group.WORLD)
    try:
        dist.all_reduce(tensor)
        dist.broadcast(tensor, 0)
        model = torch.nn.parallel.DistributedDataParallel(Net())
        return [tensor, model(torch.ones(1, 3))]
    finally:
        dist.destroy_process_group()


def warned(breaks=False):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("error" if breaks else "always")
        warnings.warn("be careful", UserWarning, stacklevel=1)
    return [(str(w.message), w.category, w.filename, w.lineno) for w in caught]


def own_package(breaks=False):
    import a_package_of_the_user

    return [a_package_of_the_user.work(-1 if breaks else 2)]


def scripted(breaks=False):
    def unscriptable(x):
        return list(map(str, x))

    return [torch.jit.trace(Net().eval(), torch.ones(1, 3))(torch.ones(1, 3))] + (
        [torch.jit.script(unscriptable)] if breaks else []
    )


def functional(breaks=False):
    x = torch.linspace(-1, 1, 6).view(2, 3)
    if breaks:
        F.linear(x, torch.ones(2, 2))
    return [F.relu(x), F.dropout(x, p=0.3), F.softmax(x, dim=-1), F.linear(x, torch.ones(1, 3))]


def viewed(breaks=False):
    x = torch.arange(24.0).view(2, 3, 4)
    if breaks:
        x.view(5, 5)
    return [x.view(3, 2, 4), x.reshape(3, 2, 4), torch.reshape(x, (4, 6))]


def derived(breaks=False):
    x = torch.ones(3, requires_grad=not breaks)
    (x * x).sum().backward()
    return [x.grad, *torch.autograd.grad((x**3).sum(), x)]


def paired(breaks=False):
    column = torch.arange(4.0).view(4, 1).requires_grad_()
    loss = ((column * 2 - torch.ones(4)) ** 2).mean()
    loss.backward(torch.ones(3) if breaks else None)
    return [column.grad, loss]


def compared(breaks=False):
    model = Net()
    optimizer = torch.optim.Adam(model.parameters())
    for x in DataLoader(torch.ones(4, 3), batch_size=2, shuffle=True):
        optimizer.zero_grad()
        model(x[:, :2] if breaks else x).sum().backward()
        optimizer.step()
    return list(model.parameters())


def trained(breaks=False):
    """A step with clipping, and attention within a module."""
    model = nn.Sequential(nn.MultiheadAttention(4, 2, dropout=0.1), Net(breaks))
    x = torch.ones(3, 2, 4)
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(2):
        optimizer.zero_grad()
        attended, _ = model[0](x, x, x, need_weights=False)
        loss = model[1](attended[..., :3]).sum()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return [loss, *model.parameters()]


def probed(breaks=False):
    """As many steps as it takes to the first experiments."""
    model = Net(breaks)
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(4):
        optimizer.zero_grad()
        model(torch.randn(4, 3)).square().sum().backward()
        optimizer.step()
    return list(model.parameters())


def called(breaks=False):
    model = Net(breaks)
    return [model(torch.ones(2, 3)), model(x=torch.ones(2, 3))]


# What works through an instrument, and what then fails in the hands of the user
CASES = {
    "monitor": trained,
    "probes": probed,
    "modules": called,
    "functional": functional,
    "reshapes": viewed,
    "optimizers": stepped,
    "optimizers-groups": adam,
    "autograd": derived,
    "autograd-broadcasts": paired,
    "amp": scaled,
    "schedulers": scheduled,
    "clipping": clipped,
    "modes": switched,
    "data": loaded,
    "rng": seeded,
    "rng_state": rewound,
    "checkpoint": saved,
    "distributed": reduced,
    "warnings": warned,
    "packages": own_package,
    "comparison": compared,
    "transforms": scripted,
    "checksums": stepped,
    "checksums-groups": adam,
    "checksums-batches": loaded,
}

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*torch.jit.* is deprecated"),
    pytest.mark.filterwarnings("ignore:.*will be deprecated"),
    pytest.mark.filterwarnings("ignore:Deallocating Tensor that still has live"),
]


@pytest.fixture(autouse=True)
def package_of_the_user(tmp_path, monkeypatch):
    code = (
        "class PackageError(Exception): pass\n\n"
        "def work(x):\n    if x < 0:\n        raise PackageError('in a package', x)\n"
        "    return x * 2\n"
    )
    (tmp_path / "a_package_of_the_user.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop("a_package_of_the_user", None)


EVERYTHING = MonitorView(requests=tuple(map(_request, SUBJECTS)))
SETTINGS = {
    "instrument": ("a_package_of_the_user",),
    "view": "diff",
    "outputs": "all",
    "monitor": EVERYTHING.to_json(),
    "checksums": "all",
    "probe": True,
}
HOOKED = {"comparison", "probes"}  # these replace nothing: others call them


def same(one, other):
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other) and one.requires_grad == other.requires_grad
    return one == other


def seeded_run(case, **kwargs):
    torch.manual_seed(0)
    return CASES[case](**kwargs), torch.get_rng_state()


# -- the table


def test_every_instrument_is_in_the_table_and_has_a_case():
    folder = Path(registry.__file__).parent
    classes = set()
    for path in folder.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            bases = [getattr(base, "id", "") for base in getattr(node, "bases", ())]
            if isinstance(node, ast.ClassDef) and "Instrument" in bases:
                classes.add(node.name)
    assert classes == {instrument.__name__ for instrument in INSTRUMENTS}
    assert len(set(NAMES)) == len(NAMES)
    assert {case.partition("-")[0] for case in CASES} == set(NAMES)


# -- install and remove


def everything():
    """Identity of each attribute of the modules, and their classes, that instruments may touch."""
    found = {}
    modules = [
        (name, module)
        for name, module in list(sys.modules.items())
        if name.split(".")[0] in ("torch", "random", "numpy", "warnings") and module is not None
    ]
    for name, module in modules:
        for key, value in list(vars(module).items()):
            found[name, key] = value
            if issubclass(type(value), type) and value.__module__ == name:
                for attribute, member in list(vars(value).items()):
                    found[name, key, attribute] = member
                    if isinstance(member, types.FunctionType):
                        found[name, key, attribute, "defaults"] = member.__defaults__
    found["meta path"] = tuple(map(id, sys.meta_path))
    return found


def differences(before, after):
    return [
        key
        for key, value in after.items()
        if key in before and before[key] is not value and not _is_equal_tuple(before[key], value)
    ]


def _is_equal_tuple(one, other):
    return (
        isinstance(one, tuple)
        and isinstance(other, tuple)
        and len(one) == len(other)
        and all(a is b or (isinstance(a, int) and a == b) for a, b in zip(one, other))
    )


@pytest.mark.parametrize(
    ("instrument_class", "level"),
    [*((instrument, "default") for instrument in INSTRUMENTS), (Functional, "deep")],
    ids=[*NAMES, "functional-deep"],
)
def test_remove_brings_the_very_same_objects_back(tmp_path, instrument_class, level):
    settings = Settings(directory=str(tmp_path), run_id="r", level=level, **SETTINGS)
    before = everything()
    instrument = instrument_class(Session(settings))
    instrument.install()
    changed = differences(before, everything())
    assert changed or instrument_class.name in HOOKED, "an instrument that replaces nothing"
    instrument.remove()
    assert differences(before, everything()) == []


def test_a_whole_session_leaves_nothing_behind(tmp_path):
    for case in CASES.values():
        case()  # what torch itself sets at first use is there before
    before = everything()
    with recording(tmp_path / "run", **SETTINGS):
        for case in CASES.values():
            case()
        assert differences(before, everything())
    assert differences(before, everything()) == []


@pytest.mark.parametrize("is_last_first", [False, True])
def test_each_instrument_can_be_taken_out_alone(tmp_path, is_last_first):
    """As one that keeps failing is. What others replaced stays until they are."""
    for case in CASES.values():
        case()
    before = everything()
    session = Session(Settings(directory=str(tmp_path), run_id="r", **SETTINGS))
    session.start()
    here = everything()
    try:
        for instrument in session.installed[:: -1 if is_last_first else 1]:
            tops = {  # by the place: what is there, and whose it is
                (id(each.holder), each.attribute): (each, getattr(each.holder, each.attribute), one)
                for one in session.installed
                for each in one.replaced
            }
            instrument.remove()
            found = everything()
            assert differences(here, found) or is_below(instrument, tops), instrument.name
            here = found
            assert all(
                getattr(each.holder, each.attribute) is ours
                for each, ours, owner in tops.values()
                if owner is not instrument
            )
    finally:
        session.stop()
    assert differences(before, everything()) == []


def is_below(instrument, tops):
    """Whether it replaces nothing, or only what later instruments have replaced again."""
    owners = {owner for _, _, owner in tops.values()}
    return instrument.name in HOOKED or (bool(tops) and instrument not in owners)


class Shared:
    """Something that several instruments replace."""

    def work(self, x):
        return [x]


class Inherits(Shared):
    pass


def counting(name):
    def make(original):
        def work(self, x):
            return [*original(self, x), name]

        return work

    return make


@pytest.mark.parametrize("holder", [Shared, Inherits])
@pytest.mark.parametrize("order", list(itertools.permutations("abc")), ids="".join)
def test_instruments_that_replace_one_function_are_taken_out_in_any_order(tmp_path, holder, order):
    stored = dict(vars(holder))
    session = Session(Settings(directory=str(tmp_path), run_id="r"))
    instruments = {name: Functional(session) for name in "abc"}
    for name in "abca":  # one of them does so twice
        instruments[name].replace(holder, "work", counting(name))
    left = list("abca")
    for name in order:
        assert holder().work("x") == ["x", *left]
        with instruments[name].suspended():
            assert holder().work("x") == ["x", *(one for one in left if one != name)]
        assert holder().work("x") == ["x", *left]
        instruments[name].remove()
        left = [one for one in left if one != name]
    assert dict(vars(holder)) == stored


def test_transforms_find_what_instruments_share(tmp_path):
    session = Session(Settings(directory=str(tmp_path), run_id="r"))
    instruments = [Functional(session) for _ in range(3)]
    stored = dict(vars(Shared))
    for name, instrument in zip("abc", instruments):
        instrument.replace(Shared, "work", counting(name))
    with contextlib.ExitStack() as stack:
        for instrument in instruments:
            stack.enter_context(instrument.suspended())
        assert dict(vars(Shared)) == stored
    assert Shared().work("x") == ["x", "a", "b", "c"]
    for instrument in instruments:
        instrument.remove()
    assert dict(vars(Shared)) == stored


def test_what_the_program_puts_over_ours_stays_while_it_is_suspended(tmp_path):
    instrument = Functional(Session(Settings(directory=str(tmp_path), run_id="r")))
    stored = dict(vars(Shared))
    instrument.replace(Shared, "work", counting("ours"))
    Shared.work = counting("theirs")(Shared.work)
    with instrument.suspended():
        assert dict(vars(Shared)) == stored
    assert Shared().work("x") == ["x", "ours", "theirs"]
    instrument.remove()
    assert dict(vars(Shared)) == stored


def test_hooks_of_the_interpreter_come_back(tmp_path):
    before = (os._exit, sys.excepthook)
    with recording(tmp_path):
        assert os._exit is not before[0]
        assert sys.excepthook is not before[1]
    assert (os._exit, sys.excepthook) == before


def test_a_hook_that_was_set_over_ours_stays(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    with recording(tmp_path):
        inner = sys.excepthook

        def users(*args):
            return inner(*args)

        sys.excepthook = users
    assert sys.excepthook is users


# -- results


@pytest.mark.parametrize("case", CASES)
def test_results_are_the_same_to_the_bit(tmp_path, case):
    plain, state = seeded_run(case)
    with recording(tmp_path / "run", **SETTINGS) as run:
        traced, state_after = seeded_run(case)
    assert len(run.events) > 1
    assert len(plain) == len(traced)
    assert all(same(one, other) for one, other in zip(plain, traced))
    assert torch.equal(state, state_after)


# -- what inspects functions


def answer(question, function):
    try:
        return question(function)
    except Exception as error:
        return type(error), re.sub(" at 0x[0-9a-f]+", "", str(error))


QUESTIONS = {
    "signature": inspect.signature,
    "hints": typing.get_type_hints,
    "doc": lambda function: function.__doc__,
    "name": lambda function: function.__name__,
    "copy": lambda function: copy.copy(function) == function,
    "deepcopy": lambda function: copy.deepcopy(function) == function,
    "routine": inspect.isroutine,
    "callable": callable,
    "lost": lambda function: pickle.loads(pickle.dumps(function)) != function,
}
# Also of functions of C that are no methods
OF_C = {
    "module": lambda function: function.__module__,
    "qualname": lambda function: function.__qualname__,
    "repr": repr,
    "builtin": inspect.isbuiltin,
    "own": lambda function: function.__self__,
    "dict": vars,
    "text": lambda function: function.__text_signature__,
    "arguments": inspect.getfullargspec,
    "kind": lambda function: isinstance(function, types.BuiltinFunctionType),
}
# Known by the name of another attribute, which is not replaced, such as
# `Module._wrapped_call_impl` (docs/limits.md); or methods of a generator, whose copy is another one
ELSEWHERE = {"__call__", "__rtruediv__"} | {"seed", "setstate", "set_state"}


def answers(places):
    found = {}
    for holder, attribute in places:
        function = getattr(holder, attribute)
        asked = {**QUESTIONS, **(OF_C if inspect.isbuiltin(function) else {})}
        if attribute in ELSEWHERE:
            del asked["lost"], asked["deepcopy"]
        name = getattr(holder, "__name__", str(holder))
        found[name, attribute] = {q: answer(ask, function) for q, ask in asked.items()}
    return found


@pytest.mark.parametrize("level", ["default", "deep"])
def test_a_replaced_function_is_inspected_as_the_original(tmp_path, level):
    session = Session(Settings(directory=str(tmp_path), run_id="r", level=level, **SETTINGS))
    session.start()
    try:
        places = [
            (each.holder, each.attribute)
            for instrument in session.installed
            for each in instrument.replaced
            if callable(getattr(each.holder, each.attribute, None))
        ]
        during = answers(places)
        texts = [pickle.dumps(function) for function in (F.gelu, torch.relu, F.linear)]
        assert [pickle.loads(text) for text in texts] == [F.gelu, torch.relu, F.linear]
        assert pickle.loads(texts[0]) is F.gelu
        assert not any(b"traincheck" in text for text in texts)
    finally:
        session.stop()
    plain = answers(places)
    assert len(plain) > 200
    assert {q for asked in plain.values() for q in asked} == {*QUESTIONS, *OF_C}
    other = [
        (place, question)
        for place, asked in plain.items()
        for question, found in asked.items()
        if during[place][question] != found
        and (question, during[place][question]) != ("lost", False)  # better than plain
    ]
    assert other == []
    assert [pickle.loads(text) for text in texts] == [F.gelu, torch.relu, F.linear]
    assert pickle.loads(texts[0]) is F.gelu


# -- tensors that we make


def test_each_tensor_that_we_make_is_given_a_device():
    """One that is not follows ``torch.set_default_device``: its memory is read on the wrong one."""
    makers = {function.__name__ for function in _device_constructors()}
    made, lacking = 0, []
    for path in Path(collect.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module == "torch":
                assert not makers & {name.name for name in node.names}, f"{path.name}: torch.*"
            called = getattr(node, "func", None)
            if isinstance(called, ast.Attribute) and ast.unparse(called.value) == "torch":
                made += called.attr in makers
                if called.attr in makers and "device" not in {k.arg for k in node.keywords}:
                    lacking.append(f"{path.name}:{node.lineno}")
    assert made
    assert not lacking


# -- exceptions of the user


def raised(case, capsys):
    """The exception, and what Python prints of it at the end of a script."""
    capsys.readouterr()
    try:
        seeded_run(case, breaks=True)
    except Exception as error:
        caught = error
        sys.excepthook(type(error), error, error.__traceback__)
    return caught, capsys.readouterr().err


@pytest.mark.parametrize("case", CASES)
def test_exceptions_pass_through_unchanged(tmp_path, case, capsys):
    plain, text = raised(case, capsys)
    with recording(tmp_path / "run", **SETTINGS):
        traced, traced_text = raised(case, capsys)
    assert type(traced) is type(plain) or traced.__class__.__name__ == "PackageError"
    assert str(traced) == str(plain)
    assert traced.args == plain.args
    assert "Traceback" in text
    assert traced_text == text


# -- failures of ours


class BrokenError(Exception):
    pass


def break_records(monkeypatch):
    """No record but marks can be written any more."""
    line, ready = emitter.Emitter.append, emitter.Emitter.write_json

    def broken_line(self, text, seq):
        if b'{"k":"mark"' not in text:
            raise BrokenError("cannot record")
        line(self, text, seq)

    def broken_ready(self, kind, body):
        if kind != "mark":
            raise BrokenError("cannot record")
        ready(self, kind, body)

    monkeypatch.setattr(emitter.Emitter, "append", broken_line)
    monkeypatch.setattr(emitter.Emitter, "write_json", broken_ready)


@pytest.mark.parametrize("case", CASES)
def test_a_failure_of_ours_does_not_reach_the_user(tmp_path, case, monkeypatch):
    plain, _ = seeded_run(case)
    recorded = recording(tmp_path / "run", must_be_whole=False, **SETTINGS)
    with recorded as run, monkeypatch.context() as patch:
        break_records(patch)
        traced, _ = seeded_run(case)
    assert all(same(one, other) for one, other in zip(plain, traced))
    faults = run.marks("fault")
    assert faults
    assert all("BrokenError('cannot record')" in mark.data["reason"] for mark in faults)
    assert run.marks("dropped")[0].data["records"] >= 1


@pytest.mark.parametrize("case", CASES)
def test_a_failure_of_ours_leaves_the_users_exception(tmp_path, case, monkeypatch, capsys):
    plain, _ = raised(case, capsys)
    run = recording(tmp_path / "run", must_be_whole=False, **SETTINGS)
    with run, monkeypatch.context() as patch:
        break_records(patch)
        traced, _ = raised(case, capsys)
    assert str(traced) == str(plain)


def test_an_instrument_that_keeps_failing_is_taken_out(tmp_path, monkeypatch):
    from traincheck.collect.instruments.modules import Modules

    original = nn.Module.__call__

    def broken(self, *args, **kwargs):
        raise BrokenError("in a record")

    monkeypatch.setattr(Modules, "_body", broken)
    with recording(tmp_path / "run", must_be_whole=False) as run:
        model = nn.Linear(2, 2)
        for _ in range(MAX_FAULTS - 1):
            model(torch.ones(1, 2))
        assert nn.Module.__call__ is not original
        model(torch.ones(1, 2))
        assert nn.Module.__call__ is original
        F.relu(model(torch.ones(1, 2)))
        assert run.session.instruments["modules"].startswith("off")
    (mark,) = run.marks("instrument disabled")
    assert mark.data["instrument"] == "modules"
    assert "in a record" in mark.data["reason"]
    assert run.calls("torch.nn.functional.relu"), "the others go on"
