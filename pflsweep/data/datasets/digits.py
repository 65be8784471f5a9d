"""scikit-learn's digits: 1,797 real handwritten digits of 8x8 pixels, which come with the package.

They are the test part of E. Alpaydin and C. Kaynak, "Optical Recognition of Handwritten Digits", UCI, 1998.
"""

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from pflsweep.data.dataset import Dataset
from pflsweep.data.datasets.pack import joined, pack
from pflsweep.ops.random import generator
from pflsweep.util.errors import UserError


def load(
    root: Path,
    download: bool,
    name: str,
    mean: Sequence[float],
    std: Sequence[float],
    test_fraction: float,
    split_seed: int,
    augment: str = "none",
) -> Dataset:
    """Return the digits: x [1797, 1, 8, 8] uint8, values 0 to 16. Nothing is read from root.

    The dataset has no split of its own. Its test split is a random share test_fraction, drawn from split_seed and
    therefore the same in every trial.
    """
    if not 0 < test_fraction < 1:
        raise UserError(f"dataset.test_fraction is {test_fraction}: it must lie between 0 and 1, both excluded.")
    table = _table()
    x, y = table[:, :-1].astype(np.uint8).reshape(-1, 1, 8, 8), table[:, -1].astype(np.int64)
    order = generator(split_seed, "digits split").permutation(len(y))
    held = round(test_fraction * len(y))
    train, test = np.sort(order[held:]), np.sort(order[:held])
    rows = joined((x[train], y[train]), (x[test], y[test]))
    return pack(name, rows, classes=10, scale=1 / 16, mean=mean, std=std, augment=augment)


def _table() -> np.ndarray:
    """Return the table of digits, [1797, 65]: 64 pixels and the digit."""
    # the file is read directly since importing sklearn.datasets takes a second
    package = find_spec("sklearn")
    assert package is not None
    assert package.origin is not None
    file = Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz"
    if file.exists():
        return np.loadtxt(file, delimiter=",")
    from sklearn.datasets import load_digits  # for versions of sklearn that keep the file elsewhere

    digits = load_digits()
    return np.column_stack((digits.data, digits.target))
