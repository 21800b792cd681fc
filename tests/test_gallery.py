"""The examples run, give the output that is committed, and are quiet when they are mended."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"
NAMES = ("plain_loop", "hf_trainer", "lightning_module", "torchrun_ddp", "notebook")
# Mended twins that are tried each time. That frameworks train quietly is tested elsewhere, too.
MENDED = ("plain_loop", "torchrun_ddp")
NEEDS = {
    "hf_trainer": ("transformers", "accelerate"),
    "lightning_module": ("lightning",),
    "notebook": ("nbclient", "nbformat", "ipykernel"),
}
MOST_BYTES, MOST_BYTES_OF_ALL = 150_000, 1_000_000
_FLOAT = re.compile(r"\d+\.\d+(?:e-?\d+)?|\d+e-?\d+")
_LIBRARY = re.compile(r"\bmodule\.py:\d+")  # of Lightning
_LOSS = re.compile(r"'?loss'?:? '?(\d+\.\d+)")


@pytest.fixture(scope="module")
def gallery() -> ModuleType:
    """The program that runs the examples."""
    spec = importlib.util.spec_from_file_location("gallery", ROOT / "docs" / "gallery.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its dataclasses look themselves up
    spec.loader.exec_module(module)
    return module


def example(gallery: ModuleType, name: str) -> Any:
    for needed in (*NEEDS.get(name, ()), "sklearn"):
        pytest.importorskip(needed)
    return next(one for one in gallery.EXAMPLE_LIST if one.name == name)


def committed(name: str) -> str:
    return (EXAMPLES / "output" / f"{name}.txt").read_text(encoding="utf-8")


def telling(output: str) -> list[str]:
    """The words of commands, findings and full reports, without numbers that depend on the machine.

    The summary of the run is left out: it counts the checks that held, and there are more with
    each new rule.
    """
    kept, is_summary = [], False
    for line in output.splitlines():
        if line.startswith(("  watched ", "run  ", "  probed ")):
            is_summary = True
        elif not line.strip() or line.startswith(("$ ", "In [")):
            is_summary = False
        if not is_summary and line.startswith(
            ("$ ", "In [", "traincheck:", "  ", "WARNING ", "ERROR ")
        ):
            kept.append(_FLOAT.sub("#", _LIBRARY.sub("#", line)))
    return " ".join(kept).split()  # a longer number may break a line elsewhere


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_an_example_gives_its_output(gallery: ModuleType, name: str, tmp_path: Path) -> None:
    one = example(gallery, name)
    gallery.copy_examples(tmp_path)
    output = gallery.run(one, tmp_path)
    assert telling(output) == telling(committed(name)), "run `make gallery`"
    losses = [float(loss) for loss in _LOSS.findall(output)]
    assert losses[-1] < losses[0]
    assert "<html" in (tmp_path / f"{name}.html").read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [name if name in MENDED else pytest.param(name, marks=pytest.mark.nightly) for name in NAMES],
)
def test_a_mended_example_has_no_finding(gallery: ModuleType, name: str, tmp_path: Path) -> None:
    one = example(gallery, name)
    gallery.copy_examples(tmp_path)
    gallery.fix(one, tmp_path)
    if one.is_notebook:
        gallery.run_notebook(tmp_path)
    else:
        command = one.command.replace("traincheck run", "traincheck run --keep")
        assert gallery.output_of(command, tmp_path).count("traincheck: no findings in ") == 1
    found = gallery.output_of(f"traincheck check -t traces/{name} --format json", tmp_path)
    report = json.loads(found)
    assert report["findings"] == []
    assert report["summary"]["steps"] > 50


@pytest.mark.parametrize("name", NAMES)
def test_an_output_has_one_finding_with_its_cause(name: str) -> None:
    text = committed(name)
    assert text.count("\n1 finding, the first at step ") == 1
    assert text.count("likely cause") == 1
    assert not re.search(r"/tmp|/home|/work|site-packages", text)


@pytest.mark.parametrize("name", NAMES)
def test_the_table_of_examples_says_what_the_output_says(gallery: ModuleType, name: str) -> None:
    readme = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    (row,) = (line for line in readme.splitlines() if line.startswith(f"| [{name}."))
    found = re.search(r"^(?:WARNING|ERROR) (TC\d+): (.*)", committed(name), re.MULTILINE)
    assert found is not None
    assert f"[{found[1]}](../docs/rules.md#" in row
    assert found[2] in row
    one = next(each for each in gallery.EXAMPLE_LIST if each.name == name)
    assert f"\n{one.command}\n" in readme
    assert f"(fixes/{name}.patch)" in row


def test_telling_keeps_findings_and_leaves_numbers_out() -> None:
    report = "$ x\nloss 0.31\ntraincheck: 1 finding\n    where  a.py:3\n  watched  1\n  x 2\n"
    assert " ".join(telling(report)) == "$ x traincheck: 1 finding where a.py:3"
    assert " ".join(telling("$ x\n  observed  by 0.016 of it\n")) == "$ x observed by # of it"
    assert " ".join(telling("  at module.py:13, a.py:4\n")) == "at #, a.py:4"
    assert telling(committed("notebook"))[:4] == ["In", "[4]:", "def", "accuracy():"]


def test_the_pictures_are_those_of_the_page_and_small(gallery: ModuleType) -> None:
    page = (ROOT / "docs" / "gallery.md").read_text(encoding="utf-8")
    shown = set(re.findall(r"\]\(gallery/(\w+)\.png\)", page))
    taken = {picture.name for picture in gallery.PICTURE_LIST} | {gallery.TERMINAL, gallery.CELL}
    files = sorted((ROOT / "docs" / "gallery").iterdir())
    assert {path.stem for path in files} == shown == taken
    sizes = [path.stat().st_size for path in files]
    assert max(sizes) < MOST_BYTES
    assert sum(sizes) < MOST_BYTES_OF_ALL


def test_pictures_are_skipped_with_a_reason(
    gallery: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    pytest.importorskip("playwright")
    pytest.importorskip("PIL")
    monkeypatch.setattr(gallery.shutil, "which", lambda name: None)
    gallery.pictures(tmp_path, tmp_path / "pictures", asked=True)
    assert capsys.readouterr().err == "pictures are left as they are: no Chromium is on the path\n"
    monkeypatch.setattr(gallery.importlib.util, "find_spec", lambda name: None)
    assert gallery.why_no_pictures().startswith("playwright and PIL cannot be imported; ")
    gallery.pictures(tmp_path, tmp_path / "pictures", asked=False)
    assert capsys.readouterr().err == "pictures are left as they are: --no-pictures was given\n"
    assert not (tmp_path / "pictures").exists()


def test_a_picture_is_taken(gallery: ModuleType, tmp_path: Path) -> None:
    if gallery.why_no_pictures():
        pytest.skip(gallery.why_no_pictures())
    from PIL import Image
    from playwright.sync_api import sync_playwright

    with sync_playwright() as player:
        browser = player.chromium.launch(executable_path=gallery.chromium(), args=["--no-sandbox"])
        with gallery.window_of(browser) as window:
            window.set_content(
                "<body style='margin:0'><h1 style='height:100px'>a</h1>"
                "<p id=b style='height:50px; background:red'>b</p>"
            )
            gallery.save(gallery.shot(window, ("#b",)), tmp_path / "b.png")
        browser.close()
    image = Image.open(tmp_path / "b.png")
    assert image.width == gallery.WIDTH
    colors = {image.convert("RGB").getpixel((5, y)) for y in range(image.height)}
    assert (255, 0, 0) in colors


def test_a_command_that_fails_is_shown(gallery: ModuleType, tmp_path: Path, capsys: Any) -> None:
    with pytest.raises(subprocess.CalledProcessError):
        gallery.output_of("traincheck check -t nowhere", tmp_path)
    assert "nowhere" in capsys.readouterr().err
