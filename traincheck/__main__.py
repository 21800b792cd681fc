"""`python -m traincheck`, the same as `traincheck`."""

from __future__ import annotations

import sys

from traincheck.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
