"""The line of a call that the trace tells no line of, found by its name in the program's source.

Only where the name is called on one line of the script that was run, and nowhere else in it.
"""

from __future__ import annotations

import ast
from pathlib import Path

from traincheck.report._places import Place, from_here, unchanged
from traincheck.schema.findings import Finding, Report

_MOST_BYTES = 2_000_000
# Modules that programs write in place of a function.
_MODULES = {
    "nll_loss": "NLLLoss",
    "mse_loss": "MSELoss",
    "l1_loss": "L1Loss",
    "kl_div": "KLDivLoss",
    "ctc_loss": "CTCLoss",
    "binary_cross_entropy": "BCELoss",
    "binary_cross_entropy_with_logits": "BCEWithLogitsLoss",
    "cross_entropy": "CrossEntropyLoss",
}


def place_by_name(finding: Finding, report: Report) -> Place | None:
    """The only line that calls what a finding is about; None when there is none, or several."""
    api = finding.subject.api or ""
    if "." not in api or not report.program:
        return None
    name = api.rpartition(".")[2]
    found = unchanged(report.program, report)
    lines = _lines_calling({name, _MODULES.get(name, name)}, found) if found else set()
    if len(lines) != 1:
        return None
    return Place(path=from_here(report.program, report.root), line=lines.pop())


def _lines_calling(names: set[str], source: Path) -> set[int]:
    try:
        if source.stat().st_size > _MOST_BYTES:
            return set()
        tree = ast.parse(source.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError):
        return set()
    calls = (node.func for node in ast.walk(tree) if isinstance(node, ast.Call))
    return {
        func.end_lineno or func.lineno
        for func in calls
        if (isinstance(func, ast.Name) and func.id in names)
        or (isinstance(func, ast.Attribute) and func.attr in names)
    }
