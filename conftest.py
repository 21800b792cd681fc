"""Make `traincheck.cli` importable from a checkout, where the packaging map is not in force.

And give tests the signals of a terminal: in the background of a script some are ignored.
"""

import importlib.util
import signal
import sys
from pathlib import Path

ROOT = Path(__file__).parent

for number, usual in (
    (signal.SIGINT, signal.default_int_handler),
    (signal.SIGHUP, signal.SIG_DFL),
):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, usual)

try:
    import traincheck
except ModuleNotFoundError:  # not installed at all: use the checkout
    sys.path.insert(0, str(ROOT))
    import traincheck

# From the root, ./traincheck shadows a plain install and has no cli inside.
if importlib.util.find_spec("traincheck.cli") is None:
    folder = ROOT / "cli"
    spec = importlib.util.spec_from_file_location(
        "traincheck.cli", folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    traincheck.cli = module
