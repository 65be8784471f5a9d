"""What a partition looks like in numbers. `parts` is a list of row arrays: rows.train or rows.test."""

from collections.abc import Sequence

import numpy as np


def sizes(parts: Sequence[np.ndarray]) -> np.ndarray:
    """Samples of each client. [N]"""
    return np.array([len(own) for own in parts])


def label_counts(parts: Sequence[np.ndarray], y: np.ndarray, classes: int) -> np.ndarray:
    """Samples of each client in each class. y [n] the class of each row -> [N, K]"""
    return np.stack([np.bincount(y[own], minlength=classes) for own in parts])


def classes_per_client(parts: Sequence[np.ndarray], y: np.ndarray, classes: int) -> np.ndarray:
    """How many classes each client has. [N]"""
    return (label_counts(parts, y, classes) > 0).sum(1)
