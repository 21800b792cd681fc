"""The handwritten digits that ship with scikit-learn, without importing it.

``import sklearn.datasets`` takes more than a second of CPU, as long as torch itself does, and these
programs are started hundreds of times.
"""

from __future__ import annotations

import gzip
from importlib.util import find_spec
from pathlib import Path

import numpy as np


def load_digits() -> tuple[np.ndarray, np.ndarray]:
    """Pixels of 0 to 16, float64 [1797, 64], and labels, int64 [1797].

    Equal to ``sklearn.datasets.load_digits(return_X_y=True)``.

    Raises:
        ModuleNotFoundError: scikit-learn is not installed.
    """
    package = find_spec("sklearn")
    if package is None or package.origin is None:
        raise ModuleNotFoundError("No module named 'sklearn': pip install scikit-learn")
    path = Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz"
    with gzip.open(path, "rt") as lines:
        table = np.loadtxt(lines, delimiter=",")
    return table[:, :-1], table[:, -1].astype(np.int64)
