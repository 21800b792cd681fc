"""What somebody accepted is not reported, and nothing else is: comments, configuration, folding."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.builders import MLP_BN, TraceBuilder
from tests.checking import BY_CODE, net
from tests.checking import FIRST_RULES as RULES
from traincheck.check.engine import Engine
from traincheck.check.suppression.policy import Suppression, SuppressionPolicy
from traincheck.check.suppression.source_files import SourceComments, SourceFiles, comments_of
from traincheck.schema.events import Event
from traincheck.schema.findings import Report, Subject, Violation

ORPHANS = ("Net.bn.weight", "Net.bn.bias")
NO_ZERO_GRAD = net().steps(4, omit={"zero_grad"}).build()
NOT_HELD = (
    TraceBuilder()
    .process()
    .model("Net", MLP_BN)
    .optimizer(names=["Net.fc1.weight", "Net.fc1.bias"])
    .steps(4)
    .build()
)


def below(folder: Path) -> SourceFiles:
    """Sources of a run in a folder, which may be read."""
    return SourceFiles(lambda: str(folder), [folder])


def checked(events: list[Event], acceptor: SuppressionPolicy) -> Report:
    engine = Engine(rules=RULES, suppress=acceptor)
    for event in events:
        engine.observe(event)
    return engine.finish()


def suppress(code: str, **parts: str) -> SuppressionPolicy:
    return SuppressionPolicy([Suppression(code=code, reason="because", **parts)])


def comment(tmp_path: Path, text: str, line: int = 88) -> SuppressionPolicy:
    lines = ["pass"] * 100
    lines[line - 1] = f"optimizer.step()  {text}"
    (tmp_path / "train.py").write_text("\n".join(lines))
    return SuppressionPolicy(sources=below(tmp_path))


def test_nothing_accepted_is_everything_reported() -> None:
    report = checked(NO_ZERO_GRAD, SuppressionPolicy())
    assert [finding.code for finding in report.findings] == ["TC201"]
    assert report.suppressed == []


@pytest.mark.parametrize("code", ["TC201", "TC2", "TC"])
def test_a_suppression_of_a_code_or_its_beginning(code: str) -> None:
    report = checked(NO_ZERO_GRAD, suppress(code))
    assert report.findings == []
    (found,) = report.suppressed
    assert (found.code, found.suppressed.by, found.suppressed.reason) == (
        "TC201",
        "configuration",
        "because",
    )


def test_of_another_code_it_accepts_nothing() -> None:
    report = checked(NO_ZERO_GRAD, suppress("TC202"))
    assert [finding.code for finding in report.findings] == ["TC201"]


def test_a_suppression_of_some_variables_leaves_the_others() -> None:
    report = checked(NOT_HELD, suppress("TC101", variable="Net.bn.*"))
    (left,), (accepted,) = report.findings, report.suppressed
    assert accepted.variables == tuple(sorted(ORPHANS))
    assert left.variables == ("Net.fc2.bias", "Net.fc2.weight")
    assert left.code == accepted.code == "TC101"


def test_all_violations_are_counted_on_one_side_or_the_other() -> None:
    (whole,) = checked(NOT_HELD, SuppressionPolicy()).findings
    report = checked(NOT_HELD, suppress("TC101", variable="*.bn.weight"))
    assert sum(f.violations for f in (*report.findings, *report.suppressed)) == whole.violations


def test_an_accepted_violation_is_no_news() -> None:
    engine = Engine(rules=RULES, suppress=suppress("TC201"))
    assert not [violation for event in NO_ZERO_GRAD for violation in engine.observe(event)]


@pytest.mark.parametrize(
    ("pattern", "name", "fits"),
    [
        ("Net.aux.*", "Net.aux.weight", True),
        ("Net.aux.*", "Net.auxx.weight", False),
        ("opt0[0].?", "opt0[0].3", True),
        ("opt0[0].?", "opt00.3", False),
        ("Net.fc?.weight", "Net.fc1.weight", True),
        ("*", None, False),
    ],
)
def test_patterns(pattern: str, name: str | None, fits: bool) -> None:
    one = Suppression(code="TC", reason="r", variable=pattern)
    assert one.covers("TC101", Subject(variable=name, api="a")) is fits


def test_all_patterns_must_fit() -> None:
    one = Suppression(code="TC", reason="r", variable="a", module="m*")
    assert one.covers("TC1", Subject(variable="a", module="mm"))
    assert not one.covers("TC1", Subject(variable="a", module="n"))


@pytest.mark.parametrize(
    ("text", "is_accepted"),
    [
        ("# traincheck: ignore[TC201]", True),
        ("# traincheck: ignore[TC101, TC201]", True),
        ("# traincheck: ignore[TC2]", True),
        ("#traincheck:ignore", True),
        ("# traincheck: ignore", True),
        ("# noqa: E501  # traincheck: ignore[TC201]", True),
        ("# noqa: E501 traincheck: ignore[TC201]", False),
        ("# traincheck: ignore[TC101]", False),
        ("# traincheck: ignore[]", False),
        ("# ignore[TC201]", False),
        ("", False),
    ],
)
def test_a_comment_at_the_call(tmp_path: Path, text: str, is_accepted: bool) -> None:
    report = checked(NO_ZERO_GRAD, comment(tmp_path, text))
    assert len(report.suppressed) == is_accepted
    assert len(report.findings) == (not is_accepted)


def test_the_reason_is_what_follows(tmp_path: Path) -> None:
    text = "# traincheck: ignore[TC201]: gradients are summed on purpose"
    (found,) = checked(NO_ZERO_GRAD, comment(tmp_path, text)).suppressed
    assert found.suppressed.reason == "gradients are summed on purpose"
    assert found.suppressed.where == "train.py:88"
    assert found.suppressed.by == "comment"


def test_a_comment_elsewhere_says_nothing(tmp_path: Path) -> None:
    report = checked(NO_ZERO_GRAD, comment(tmp_path, "# traincheck: ignore", line=30))
    assert [finding.code for finding in report.findings] == ["TC201"]


@pytest.mark.parametrize("content", [None, b"\xff\xfe", b"def (:\n  # traincheck: ignore\n"])
def test_a_source_that_cannot_be_read_has_no_comments(
    tmp_path: Path, content: bytes | None
) -> None:
    if content is not None:
        (tmp_path / "train.py").write_bytes(content)
    report = checked(NO_ZERO_GRAD, SuppressionPolicy(sources=below(tmp_path)))
    assert [finding.code for finding in report.findings] == ["TC201"]


SOURCE = """\
for batch in loader(
    a,  # traincheck: ignore[HEAD]
):
    loss = model(
        batch,
        weight=1,  # traincheck: ignore[CALL] a reason
    )
    text = "# traincheck: ignore[TEXT]"
    step()  # traincheck: ignore[ONE,TWO]
    with autocast():  # traincheck: ignore[WITH]
        other()
match loss:
    case 1:
        third()  # traincheck: ignore[CASE]
    case _:
        fourth()
"""


@pytest.mark.parametrize(
    ("line", "codes"),
    [
        (1, ("HEAD",)),
        (3, ("HEAD",)),
        (4, ("CALL",)),
        (5, ("CALL",)),
        (7, ("CALL",)),
        (8, None),
        (9, ("ONE", "TWO")),
        (10, ("WITH",)),
        (11, None),
        (14, ("CASE",)),
        (16, None),
    ],
)
def test_which_lines_a_comment_stands_for(line: int, codes: tuple[str, ...] | None) -> None:
    found = comments_of(SOURCE).get(line)
    assert (found.codes if found else None) == codes


@pytest.mark.parametrize("place", ["train.py", "train.py:x", "<stdin>:3", ""])
def test_what_is_no_place_has_no_comment(tmp_path: Path, place: str) -> None:
    assert SourceComments(below(tmp_path)).at(place) is None


def test_a_comment_of_absolute_path(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x()  # traincheck: ignore\n")
    assert (
        SourceComments(SourceFiles(lambda: "/nowhere", [tmp_path])).at(f"{tmp_path}/a.py:1").codes
        == ()
    )


@given(st.text(st.sampled_from("#traincheck: ignore[TC]\n()'\"\\\x00\tif"), max_size=80))
@example("\t efr\nt)\x00finaCkg[#t'")
def test_no_text_is_too_odd(source: str) -> None:
    found = comments_of(source + "\n# traincheck: ignore[TC1]")
    assert all(line >= 1 for line in found)


@pytest.mark.parametrize("place", ["a\x00b.py:1", f"{'x' * 5000}.py:1"])
def test_a_path_that_cannot_be_has_no_comments(tmp_path: Path, place: str) -> None:
    assert SourceComments(below(tmp_path)).at(place) is None


API = "torch.nn.functional.cross_entropy"
PLAIN = "loss = cross_entropy(a, b)"


@pytest.mark.parametrize(
    ("source", "accepted_at"),
    [
        (f"{PLAIN}  # traincheck: ignore[TC310] on purpose", "train.py:1"),
        ("f = nn.CrossEntropyLoss()  # traincheck: ignore[TC310] on purpose", "train.py:1"),
        (f"pass\n{PLAIN} # traincheck: ignore\n{PLAIN} # traincheck: ignore", "train.py:2"),
        (f"{PLAIN}  # traincheck: ignore[TC311]", None),
        (f"{PLAIN}\n{PLAIN}  # traincheck: ignore[TC310]", None),  # it may be the other
        (f"{PLAIN}\npass  # traincheck: ignore[TC310]", None),
        ("pass  # traincheck: ignore[TC310]", None),
    ],
)
def test_a_comment_at_a_call_whose_line_nothing_tells(
    tmp_path: Path, source: str, accepted_at: str | None
) -> None:
    (tmp_path / "train.py").write_text(source)
    acceptor = SuppressionPolicy(sources=below(tmp_path), program=lambda: "train.py")
    info = BY_CODE["TC310"].info
    told = dict.fromkeys(("symptom", "message", "expected", "observed"), "")
    subject = Subject(api=API)
    violation = Violation(check_id="TC310", step=0, rank=0, stage="train", subject=subject, **told)
    accepted = acceptor(violation, info)
    assert (accepted and accepted.where) == accepted_at
    elsewhere = SuppressionPolicy(sources=below(tmp_path))
    assert elsewhere(violation, info) is None


def test_an_accepted_cause_still_explains_its_effects() -> None:
    events = net().steps(5, style="C").build()  # step before backward
    rules = [BY_CODE["TC203"], BY_CODE["TC202"]]
    engine = Engine(rules=rules, suppress=suppress("TC203"))
    for event in events:
        engine.observe(event)
    report = engine.finish()
    assert report.findings == []
    assert [finding.code for finding in report.suppressed] == ["TC203"]
