"""``python -m benchmarks``: overhead, then inference; JSON goes to ``benchmarks/results``."""

import sys

from benchmarks import inference, overhead
from benchmarks.harness import ROOT

RESULTS = ROOT / "benchmarks" / "results"


def main() -> int:
    overhead.main([*sys.argv[1:], "--json", str(RESULTS / "overhead.json")])
    print()
    return inference.main(["--json", str(RESULTS / "inference.json")])


if __name__ == "__main__":
    sys.exit(main())
