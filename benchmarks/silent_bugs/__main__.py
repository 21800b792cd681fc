"""``python -m benchmarks.silent_bugs``."""

import sys

from benchmarks.silent_bugs.bench import main

sys.exit(main())
