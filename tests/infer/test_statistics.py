"""Statistics of runs: what is learned from them is what is learned from the runs themselves."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations
from types import SimpleNamespace

import orjson
import pytest

from tests.builders import BN_BUFFERS, MLP, MLP_BN, TraceBuilder, healthy_run
from tests.learning import Recorded, report_of, texts
from traincheck.errors import InvariantFormatError
from traincheck.infer.coverage import RunCoverage
from traincheck.infer.engine import Run, infer, learn_from
from traincheck.infer.files import read_statistics, save, write_statistics
from traincheck.infer.replay_views import in_selective_view, in_step_sample
from traincheck.infer.select import SILENT, Limits
from traincheck.infer.statistics import distinct_runs, statistics_of
from traincheck.relations.registry import RELATIONS
from traincheck.schema.claims import Hypothesis, Needs
from traincheck.schema.findings import Verdict
from traincheck.schema.invariant_file import invariant_json
from traincheck.schema.torch_api import Families

ZERO_GRAD = "In every training step, zero_grad is called"


def net(**options) -> TraceBuilder:
    return TraceBuilder().process().model("Net", MLP, **options).optimizer().train()


def without_zero_grad(steps: int = 12):
    trace = net()
    for _ in range(steps):
        trace.begin_step().forward("Net").backward().optimizer_step()
    return trace.build()


RUNS = {
    "plain": healthy_run(12),
    "evaluated": net().steps(9, style="B", eval_every=2).build(),
    "scheduled": healthy_run(10, scheduler=True),
    "normalized": TraceBuilder()
    .process()
    .model("Norm", MLP_BN, buffers=BN_BUFFERS)
    .optimizer()
    .train()
    .steps(8)
    .build(),
    "leaking": without_zero_grad(),
}


def named(*names: str) -> list[Run]:
    return [Run(name=name, source=Recorded(RUNS[name])) for name in names]


def as_bytes(result) -> bytes:
    kept = [invariant_json(i) for i in result.invariants]
    return orjson.dumps([kept, repr(result.dropped), result.hypotheses, list(result.runs)])


@pytest.mark.parametrize("order", list(permutations(["plain", "evaluated", "scheduled"])), ids=str)
def test_adding_runs_one_by_one_gives_what_all_of_them_give(order, tmp_path):
    path = tmp_path / "invariant.json.stats"
    whole = infer(named("plain", "evaluated", "scheduled"))
    assert whole.invariants
    known = []
    for name in order:
        result = infer(named(name), known=known)
        write_statistics(path, result.statistics)
        known = read_statistics(path)
    assert as_bytes(result) == as_bytes(whole)


def test_equal_statistics_are_equal_bytes_and_come_back_whole(tmp_path):
    runs = infer(named(*RUNS)).statistics
    write_statistics(tmp_path / "a", runs)
    write_statistics(tmp_path / "b", reversed(read_statistics(tmp_path / "a")))
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert as_bytes(learn_from(runs)) == as_bytes(learn_from(read_statistics(tmp_path / "b")))


def test_order_of_runs_and_jobs_change_no_byte_of_what_is_written(tmp_path):
    def written(names, jobs):
        save(infer(named(*names), jobs=jobs), tmp_path / "invariant.json", Limits())
        return [path.read_bytes() for path in sorted(tmp_path.iterdir())]

    names = list(RUNS)
    once = written(names, 1)
    assert len(once) == 3
    for jobs in (1, 2, 5):
        assert written(reversed(names), jobs) == once


@pytest.mark.parametrize("order", list(permutations(["plain", "leaking"])), ids=str)
def test_what_a_run_could_have_shown_and_did_not_is_no_invariant(order):
    first = infer(named(order[0]))
    result = infer(named(order[1]), known=first.statistics)
    assert f"{ZERO_GRAD}." not in texts(result)
    (dropped,) = [one for one in result.dropped if one.text == ZERO_GRAD]
    assert (dropped.reason, dropped.detail) == (SILENT, "leaking")


def test_a_run_that_could_not_show_it_has_no_part_in_it():
    result = infer(named("plain", "normalized"))
    of_one = [i for i in result.invariants if "running_mean" in i.text]
    assert of_one
    assert {i.support.runs for i in of_one} == {1}


def test_a_run_that_bears_out_more_speaks_for_what_is_less():
    """In one run the size of batches varies; in the other it does not, so nothing is said of it."""
    varied, fixed = net(), net()
    for number in range(12):
        varied.begin_step().batch().zero_grad().forward("Net", batch_size=64 - number % 2)
        varied.backward().optimizer_step()
        fixed.begin_step().batch().zero_grad().forward("Net").backward().optimizer_step()
    runs = [Run(name=n, source=Recorded(t.build())) for n, t in (("v", varied), ("f", fixed))]

    def said(result):
        return [text for text in texts(result, "input_output") if "first dim" in text]

    assert said(infer(runs[:1]))
    assert said(infer(runs)) == said(infer(runs[:1]))
    assert not said(infer(runs[1:]))


def with_modes(eval_every: int | None, steps: int = 12):
    trace = net()
    for number in range(steps):
        trace.begin_step().zero_grad()
        mode(trace, training=True)
        trace.backward().optimizer_step()
        if eval_every and number % eval_every == 0:
            mode(trace, training=False)
    return trace.build()


def mode(trace, *, training: bool) -> None:
    """A dropout of the library inside a module of the program."""
    span, start = trace.new_span(), trace.now_ns
    args = {"p": 0.5, "training": training}
    trace.call("torch.nn.functional.dropout", parent=span, args=args, training=training)
    trace.call(
        "__main__.Net.forward",
        span=span,
        start_ns=start,
        family=Families.MODULE,
        module="Net",
        root=True,
        training=training,
        grad_enabled=training,
    )


@pytest.mark.parametrize(
    "other", [with_modes(None), with_modes(2, steps=2)], ids=["train", "short"]
)
def test_a_run_that_never_evaluates_or_is_short_says_nothing_against(other):
    runs = [Run(name=n, source=Recorded(e)) for n, e in (("a", with_modes(1)), ("b", other))]
    for known in (runs[:1], runs):
        said = " ".join(texts(infer(known)))
        for value in (True, False):
            claim = f"during every Net.forward, functional.dropout is called with training={value}"
            assert claim in said


def test_a_run_is_counted_once():
    source = Recorded(RUNS["plain"])
    source.manifest = SimpleNamespace(run_id="train-1")
    runs = [statistics_of(source, RELATIONS, name) for name in ("here", "a copy")]
    assert [run.name for run in distinct_runs(runs)] == ["a copy"]
    assert {i.support.runs for i in learn_from(runs).invariants} == {1}


def test_only_relations_that_all_runs_were_asked_about():
    order = {"order": RELATIONS["order"]}
    first = infer(named("plain"), relations=order)
    result = infer(named("evaluated"), known=first.statistics)
    assert {i.hypothesis.relation for i in result.invariants} == {"order"}


def test_claims_that_another_version_made_are_left_out():
    (run,) = infer(named("plain")).statistics
    (key, told), *_ = ((k, t) for k, t in run.evidence.items() if t.claim.relation == "order")
    strange = replace(told, claim=Hypothesis(relation="order", params={"follows": "x"}))
    others = {k: t for k, t in run.evidence.items() if k != key}
    result = learn_from([replace(run, evidence={**others, "order {}": strange})])
    assert texts(result) == texts(learn_from([replace(run, evidence=others)]))


@pytest.mark.parametrize("content", [b"", b"x", b'{"a": 1}'], ids=repr)
def test_a_damaged_file_is_named(content, tmp_path):
    path = tmp_path / "invariant.json.stats"
    path.write_bytes(content)
    with pytest.raises(InvariantFormatError, match=r"invariant\.json\.stats: is damaged"):
        read_statistics(path)


@pytest.mark.parametrize("version", [1, 99])
def test_another_version_is_named(version, tmp_path, monkeypatch):
    path = tmp_path / "invariant.json.stats"
    monkeypatch.setattr("traincheck.infer.files.STATISTICS_VERSION", version)
    write_statistics(path, infer(named("plain")).statistics)
    monkeypatch.undo()
    with pytest.raises(InvariantFormatError, match=f"statistics version {version}"):
        read_statistics(path)


@pytest.mark.parametrize("name", RUNS)
def test_what_is_learned_stands_the_replay_by_the_engine_in_every_view(name):
    invariants = infer(named(name)).invariants
    needs = Needs()
    for invariant in invariants:
        needs |= invariant.needs
    events = RUNS[name]
    less = [e for e in (in_selective_view(event, needs) for event in events) if e is not None]
    few = [e for e in (in_step_sample(event) for event in less) if e is not None]
    for view in (events, less, few):
        verdicts = report_of(invariants, view).verdicts.values()
        assert not {Verdict.VIOLATED, Verdict.NOT_OBSERVABLE} & set(verdicts)


def test_runs_of_other_programs_are_not_asked_what_one_does(monkeypatch):
    """There may be hundreds of them, each with different claims."""
    asked = []
    could_observe = RunCoverage.could_observe

    def counted(self, relation, claim):
        asked.append((self.programs, claim.params.get("program")))
        return could_observe(self, relation, claim)

    monkeypatch.setattr(RunCoverage, "could_observe", counted)
    traces = {
        name: TraceBuilder().process(argv0=name).model("Net", MLP).optimizer().train()
        for name in ("a.py", "b.py", "c.py")
    }
    runs = [
        Run(name=name, source=Recorded(trace.steps(9, scheduler=i == 1).build()))
        for i, (name, trace) in enumerate(traces.items())
    ]
    assert any("a.py" in text for text in texts(infer(runs)))
    assert asked
    assert all(
        program is None or any(known.startswith(program.partition("#")[0]) for known in programs)
        for programs, program in asked
    )
