"""Statistics of a partition. `parts` is a list with the row numbers of each client: rows.train or rows.test."""

from collections.abc import Sequence

import numpy as np


def label_counts(parts: Sequence[np.ndarray], y: np.ndarray, classes: int) -> np.ndarray:
    """Return the number of samples of each client in each class. y [n] the class of each row -> [N, K] int64."""
    return np.stack([np.bincount(y[own], minlength=classes) for own in parts])


def emd(counts: np.ndarray) -> np.ndarray:
    """Return the distance of each client's classes from those of all: sum_k |q_ik - q_k|, in [0, 2).

    counts [N, K] -> [N]. The earth mover's distance of Zhao et al. 2018, https://arxiv.org/abs/1806.00582, as in
    FedFomo's text.
    """
    own = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    return np.abs(own - counts.sum(0) / max(counts.sum(), 1)).sum(1)


def summary(counts: np.ndarray) -> dict[str, float]:
    """Return summary statistics of a partition. counts: [N, K] training samples of each client in each class.

    emd is the mean over clients. emd_code counts each class twice, as FedFomo's code and the paper's tables do.
    """
    sizes, classes, distance = counts.sum(1), (counts > 0).sum(1), float(emd(counts).mean())
    return {
        "clients": len(counts),
        "size_mean": float(sizes.mean()),
        "size_std": float(sizes.std()),
        "size_min": int(sizes.min()),
        "size_max": int(sizes.max()),
        "classes_mean": float(classes.mean()),
        "classes_min": int(classes.min()),
        "classes_max": int(classes.max()),
        "emd": distance,
        "emd_code": 2 * distance,
    }
