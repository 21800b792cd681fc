"""All cases, in the order of the table: by the first check each belongs to."""

from benchmarks.torch_audit_cases import case, data, gpu, graph, host, numbers, settings, tokens
from benchmarks.torch_audit_cases.case import Case

# Importing them enters their programs.
THEMES = (numbers, settings, gpu, data, graph, tokens, host)


def _place(one: Case) -> tuple[int, str, int]:
    """Ids of the release, then numbers of older checks, then programs that belong to none."""
    if not one.checks:
        return 2, "", 0
    check = one.checks[0]
    return (1, "", int(check)) if check.isdigit() else (0, check, 0)


CASES: dict[str, Case] = {one.id: one for one in sorted(case.CASES.values(), key=_place)}
