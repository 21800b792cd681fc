"""What a notebook shows: text, short representations and HTML, places in cells."""

from __future__ import annotations

import io
import pydoc
import re
import subprocess
import sys
from dataclasses import replace

import pytest
from rich.console import Console

import traincheck
from tests.report.test_golden import REPORTS, several
from traincheck.diff.difference import Difference
from traincheck.diff.sources import Change
from traincheck.report import lines
from traincheck.report.registry import load_format
from traincheck.schema.findings import Findings

CELLS = '''
from IPython.core.interactiveshell import InteractiveShell

shell = InteractiveShell.instance()


def run(source):
    result = shell.run_cell(source, store_history=True)
    result.raise_error()
    return result.result


run("""import torch, traincheck
net = torch.nn.Linear(4, 2)
data = torch.randn(8, 4)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)""")
run("""with traincheck.watch(net, optimizer) as watched:
    for _ in range(4):
        net(data).square().mean().backward()
        optimizer.step()""")
print(run("watched.findings"))
print(run("print(watched)"))
html = shell.display_formatter.format(run("watched.findings"))[0]["text/html"]
print("html:", "Cell In[2]:3" in html or "Cell In[2]:4" in html, "TC201 error" in html)
'''


def test_cells_of_a_notebook_are_places(tmp_path) -> None:
    pytest.importorskip("IPython")
    done = subprocess.run(
        [sys.executable, "-c", CELLS], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    first, *_ = done.stdout.splitlines()
    assert re.fullmatch(r"Out\[3\]: <TC201 error at step \d: Gradients are not cleared .*>", first)
    assert re.search(r"where +Cell In\[2\]:[34]\n", done.stdout)
    assert done.stdout.endswith("html: True True\n")


def test_text_goes_to_the_stream_where_rich_takes_the_process_for_a_notebook(monkeypatch) -> None:
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    assert Console(file=io.StringIO()).is_jupyter, "rich asks otherwise now"
    stream = io.StringIO()
    assert not lines.page(stream).is_jupyter
    load_format("text")(several(), stream)
    assert stream.getvalue().startswith("2 findings")


@pytest.mark.parametrize("name", sorted(REPORTS))
def test_representations_are_short_and_html_is_whole(name: str) -> None:
    report = REPORTS[name]()
    assert len(repr(report)) < 80
    html = report._repr_html_()
    for finding in report.findings:
        assert repr(finding).startswith(f"<{finding.code} {finding.severity} ")
        assert "\n" not in repr(finding)
        assert finding.fix.replace("'", "&#x27;") in html
    found = Findings(report.findings)
    assert repr(found) == ("\n".join(map(repr, report.findings)) or "<no findings>")
    assert found._repr_html_()


def test_html_holds_no_markup_of_the_program() -> None:
    odd = "<script>alert(1)</script>\x1b[31m"
    finding = replace(
        several().findings[0], title=odd, observed=odd, likely_cause=odd, fix=odd, variables=(odd,)
    )
    for shown in (finding, Findings([finding]), replace(several(), findings=[finding])):
        html = shown._repr_html_()
        assert "<script" not in html
        assert "\x1b" not in html
        assert "&lt;script&gt;" in html


def test_html_of_a_comparison_shows_the_code_that_differs() -> None:
    change = Change(
        function="main", path_a="a/train.py", path_b="b/train.py",
        a=((7, "lr = 0.1"),), b=((8, "lr = 0.2"),), at_a=7, at_b=8,
    )  # fmt: skip
    html = Difference(a="a", b="b", first=None, changes=(change,))._repr_html_()
    for text in ("train.py:8 main", "- lr = 0.1", "+ lr = 0.2"):
        assert text in html


def test_help_shows_what_the_package_offers() -> None:
    text = pydoc.plain(pydoc.render_doc(traincheck))
    for name in ("watch(", "step(", "mark(", "annotate_stage("):
        assert re.search(rf"^    {re.escape(name)}", text, re.MULTILINE), name
