"""One test for many values: each value is checked, and none costs a test.

Collecting, starting and reporting a test takes 10 ms, which is more than most checks of one rule,
page or case take themselves.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any

_MOST = 20  # failures that are shown in full


def together(
    argument: str, values: Iterable[Any], *, ids: Callable[[Any], str] = str
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Call a test with each value as an argument, and fail once, with all values that failed.

    Stands where ``pytest.mark.parametrize`` would. Fixtures are made once, for all values.
    """
    chosen = list(values)
    assert chosen, "a test without values cannot fail"

    def decorated(test: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(test)
        def run(**fixtures: Any) -> None:
            failed = {}
            for value in chosen:
                try:
                    test(**{argument: value}, **fixtures)
                except Exception as error:
                    failed[ids(value)] = f"{type(error).__name__}: {error}"
            shown = "\n".join(f"{name}: {text}" for name, text in list(failed.items())[:_MOST])
            assert not failed, (
                f"{len(failed)} of {len(chosen)} failed: {', '.join(failed)}\n{shown}"
            )

        given = inspect.signature(test)
        kept = [each for name, each in given.parameters.items() if name != argument]
        run.__signature__ = given.replace(parameters=kept)  # type: ignore[attr-defined]
        del run.__wrapped__  # type: ignore[attr-defined]
        return run

    return decorated
