"""``python -m benchmarks.field``."""

import sys

from benchmarks.field.bench import main

sys.exit(main())
