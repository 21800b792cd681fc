"""Options from a TOML file: what is known is taken, what is not is refused by name."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.together import together
from traincheck.check.suppression.policy import Suppression
from traincheck.config import CollectConfig, Config, load_config
from traincheck.errors import UsageError


@pytest.fixture
def config(tmp_path: Path):
    def write(text: str) -> Path:
        path = tmp_path / "traincheck.toml"
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        return path

    return write


def test_every_option_can_be_given(config) -> None:
    text = """
    [collect]
    output = "traces/good"
    invariants = ["a.json", "b.json"]
    rules = true
    every = 10
    warmup = 3
    level = "deep"
    instrument = ["mypkg"]
    """
    assert load_config(config(text)).collect == CollectConfig(
        output="traces/good",
        invariants=("a.json", "b.json"),
        rules=True,
        every=10,
        warmup=3,
        level="deep",
        instrument=("mypkg",),
    )


@pytest.mark.parametrize("text", ["", "[collect]\n"])
def test_nothing_given_is_nothing_set(config, text) -> None:
    assert load_config(config(text)).collect == CollectConfig()


@pytest.mark.parametrize(
    ("text", "what", "fix"),
    [
        ("[collect]\nevry = 2", "evry", "'every'"),
        ("[collect]\nzzz = 2", "zzz", "use one of"),
        ("[colect]\nevery = 2", r"\[colect\]", "'collect'"),
        ("every = 2", "every", "collect"),
        ("collect = 2", "not a table", r"\[collect\]"),
        ('[collect]\nevery = "2"', "every", "whole number"),
        ("[collect]\nevery = true", "every", "whole number"),
        ("[collect]\nrules = 1", "rules", "true or false"),
        ('[collect]\ninvariants = "a.json"', "invariants", "list of strings"),
        ("[collect]\ninstrument = [1]", r"instrument\[0\] in \[collect\] is 1", "a string"),
        ("[collect]\nevery = 2020-01-01", r"every in \[collect\] is datetime", "whole number"),
        ("[monitor]\nmetrics = [3]", r"metrics\[0\] in \[monitor\] is 3", "a string"),
        ('[monitor]\nmetrics = [{per = "row"}]', r"\[monitor\] has no on", "add on"),
        ('[monitor]\nmetrics = [{on = "act", stat = 1}]', "unknown key 'stat'", "'statistics'"),
        ("[collect", "not TOML", "correct"),
    ],
)
def test_what_is_wrong_is_named_with_a_fix(config, text, what, fix) -> None:
    path = config(text)
    with pytest.raises(UsageError, match=what) as caught:
        load_config(path)
    assert str(path) in caught.value.message
    assert re.search(fix, str(caught.value.fix))


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("\n# x\nselct = []", 3),
        ("[collect]\nevery = 3\n[colect]\nevery = 3", 3),
        ("[monitor]\n[collect]\n\nevery = 'x'", 4),
        ("[[suppress]]\ncode='A'\nreason='r'\n[[suppress]]\nreason='r'\ncode = 7", 6),
        ("[tool.traincheck.collect]\nevery = 3\nevry = 4", 3),
        ("collect = 4", 1),
    ],
)
def test_what_is_wrong_is_named_with_its_line(config, text: str, line: int) -> None:
    path = config(text)
    with pytest.raises(UsageError, match=f"{re.escape(str(path))}:{line}:"):
        load_config(path)


def test_a_table_of_pyproject_is_understood_in_any_file(config) -> None:
    assert load_config(config('[tool.traincheck]\nselect = ["TC1"]')).select == ("TC1",)
    assert load_config(config('select = ["TC1"]')).select == ("TC1",)


def test_a_file_that_is_not_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "binary.toml"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match="not TOML"):
        load_config(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"nowhere\.toml"):
        load_config(tmp_path / "nowhere.toml")


def test_what_a_project_settles(config) -> None:
    path = config(
        """
        select = ["TC1", "TC2"]
        ignore = ["TC102"]
        fail_on = "error"

        [[suppress]]
        code = "TC101"
        variable = "Net.aux.*"
        reason = "trained by hand"

        [rules.TC702]
        ratio = 5.0

        [collect]
        every = 10
        """
    )
    assert load_config(path) == Config(
        select=("TC1", "TC2"),
        ignore=("TC102",),
        fail_on="error",
        suppress=(
            Suppression(
                code="TC101", variable="Net.aux.*", reason="trained by hand", where=str(path)
            ),
        ),
        rules={"TC702": {"ratio": 5.0}},
        collect=CollectConfig(every=10),
        path=path,
    )


@pytest.mark.parametrize(
    ("text", "what", "fix"),
    [
        ('selct = ["TC1"]', "key 'selct'", "'select'"),
        ('select = "TC1"', "select is 'TC1'", "list of strings"),
        ('fail_on = "fatal"', "fail_on is 'fatal'", "info, warning, error"),
        ("fail_on = 1", "fail_on is 1", "a string"),
        ("suppress = [1]", "suppress is 1, not a list of tables", r"\[\[suppress\]\]"),
        ('path = "x"', "key 'path'", "use one of"),
        ('[[suppress]]\ncode = "TC101"', "number 1 has no reason", "reason ="),
        ('[[suppress]]\ncode = "TC101"\nreason = " "', "number 1 has no reason", "reason ="),
        ('[[suppress]]\nreason = "x"', "number 1 has no code", "code ="),
        ('[[suppress]]\ncode = "T"\nreason = "x"\nvarible = "a"', "'varible'", "'variable'"),
        ('[[suppress]]\ncode = "T"\nreason = "x"\nwhere = "a"', "'where'", "use one of"),
        ('[[suppress]]\ncode = "T"\nreason = "x"\nmodule = 1', "module", "a string"),
        ('[suppress]\ncode = "T"', "not a list of tables", r"\[\[suppress\]\]"),
        ("[rules]\nTC101 = 1", "not a table of tables", r"\[rules\."),
    ],
)
def test_what_a_project_cannot_settle(config, text, what, fix) -> None:
    path = config(text)
    with pytest.raises(UsageError, match=what) as caught:
        load_config(path)
    assert str(path) in caught.value.message
    assert re.search(fix, str(caught.value.fix))


KEYS = ("select", "ignore", "fail_on", "suppress", "rules", "collect")
WITHIN = [f"collect.{key}" for key in CollectConfig.__struct_fields__]


@together("key", [*KEYS, *WITHIN, "rules.TC1", "rules.TC1.ratio"])
@pytest.mark.parametrize("value", ["1", "-0.5", '"x"', "true", "[1]", "[[]]", "[{}]", "{a=1}"])
def test_any_value_is_taken_or_named(config, key: str, value: str) -> None:
    path = config(f"{key} = {value}")
    refused = UsageError(f"{path}: {key}", fix="nothing")
    try:
        load_config(path)
    except UsageError as error:
        refused = error
    assert refused.message.startswith(f"{path}:")
    assert any(name in refused.message for name in key.split("."))
    assert refused.fix


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "project" / "deep" / "er").mkdir(parents=True)
    return tmp_path / "project"


def test_the_nearest_file_upward_counts(tree: Path) -> None:
    (tree / "traincheck.toml").write_text('ignore = ["TC1"]')
    assert load_config(start=tree / "deep" / "er").ignore == ("TC1",)
    (tree / "deep" / "traincheck.toml").write_text('ignore = ["TC2"]')
    assert load_config(start=tree / "deep" / "er").ignore == ("TC2",)
    assert load_config(start=tree).ignore == ("TC1",)


def test_pyproject_counts_when_it_has_our_table(tree: Path) -> None:
    path = tree / "pyproject.toml"
    path.write_text('[project]\nname = "traincheck-user"')
    (tree.parent / "traincheck.toml").write_text('ignore = ["TC1"]')
    assert load_config(start=tree).ignore == ("TC1",)
    path.write_text('[tool.traincheck]\nignore = ["TC3"]\n[tool.traincheck.collect]\nevery = 2')
    assert load_config(start=tree).ignore == ("TC3",)
    assert load_config(path).collect.every == 2
    (tree / "traincheck.toml").write_text('ignore = ["TC4"]')
    assert load_config(start=tree).ignore == ("TC4",)


@pytest.mark.parametrize("content", [b"\xff\xfe", b"[broken"])
def test_a_pyproject_that_does_not_speak_of_us_is_passed_by(tree: Path, content: bytes) -> None:
    (tree / "pyproject.toml").write_bytes(content)
    assert load_config(start=tree) == Config()


def test_a_broken_pyproject_that_does_is_named(tree: Path) -> None:
    (tree / "pyproject.toml").write_text("[tool.traincheck\n")
    with pytest.raises(UsageError, match=r"pyproject\.toml.* is not TOML"):
        load_config(start=tree)


@pytest.mark.parametrize("text", ["tool = 3", "[tool]\ntraincheck = 3"])
def test_a_pyproject_in_which_we_are_no_table_is_named(tree: Path, text: str) -> None:
    (tree / "pyproject.toml").write_text(text)
    with pytest.raises(UsageError, match=r"pyproject\.toml: (tool|traincheck) is 3, not a table"):
        load_config(tree / "pyproject.toml")


def test_without_a_file_there_are_the_defaults(tree: Path) -> None:
    assert load_config(start=tree) == Config()
    assert Config().fail_on == "warning"
