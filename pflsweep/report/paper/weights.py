"""Numbers from methods' matrices of clients by clients: FedFomo's P, whose row a client mixes by, and PGFed's A."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pflsweep.report.paper.store import FinishedTrial

Array = NDArray[np.float64]


def off_diagonal(matrix: Array) -> Array:
    """Return a matrix with NaN on its diagonal: what clients have of themselves is another matter."""
    return np.where(np.eye(len(matrix), dtype=bool), np.nan, np.asarray(matrix, dtype=np.float64))


def groups(trial: FinishedTrial) -> NDArray | None:
    """Return [N] the distribution of each client's training data as a number; None if the partition has none."""
    if "group" not in trial.partition:
        return None
    return trial.partition.groupby("client")["group"].first().astype("category").cat.codes.to_numpy()


def groups_of_test_data(trial: FinishedTrial) -> NDArray | None:
    """Return the distribution of each client's test data as a number, [N]; None if the partition has none.

    It is the client's own unless targets are permuted: then the one whose training labels are the nearest to its test
    labels (L1).
    """
    own = groups(trial)
    if own is None or trial.config.get("data.targets") != "permuted":
        return own
    counts = {split: trial.partition.pivot_table(split, "client", "class").to_numpy() for split in ("train", "test")}
    train = np.stack([_shares(counts["train"][own == group].sum(0)) for group in range(own.max() + 1)])
    test = _shares(counts["test"])
    return np.abs(test[:, None] - train[None]).sum(2).argmin(1)


def _shares(counts: Array) -> Array:
    return counts / np.maximum(counts.sum(-1, keepdims=True), 1)


def change(trial: FinishedTrial) -> Array | None:
    """Return PGFed's A of the last round minus 1 / M, its start, [N, N], with NaN on the diagonal; None without A."""
    a = trial.matrices.get("A")
    return None if a is None else off_diagonal(a - 1 / trial.rounds["cohort"].iloc[0])


def sizes(trial: FinishedTrial) -> Array:
    """Return [N] training samples."""
    return trial.partition.groupby("client")["train"].sum().to_numpy(dtype=float)


def within(trial: FinishedTrial, options: dict[str, Any]) -> float:
    """Return the mean weight that P gives to others of the client's own distribution."""
    return _mean(trial, groups(trial), same=True)


def across(trial: FinishedTrial, options: dict[str, Any]) -> float:
    """Return the mean weight that P gives to others of other distributions."""
    return _mean(trial, groups(trial), same=False)


def to_target(trial: FinishedTrial, options: dict[str, Any]) -> float:
    """Return the mean weight to others of the distribution that the client is tested on."""
    return _mean(trial, groups_of_test_data(trial), same=True)


def to_rest(trial: FinishedTrial, options: dict[str, Any]) -> float:
    """Return the mean weight that P gives to all but those of the distribution that the client is tested on."""
    return _mean(trial, groups_of_test_data(trial), same=False)


def _mean(trial: FinishedTrial, wanted: NDArray | None, same: bool) -> float:
    """Return the mean of P's entries [i, j], j other than i, where j's distribution is (not) the one that i wants."""
    p, own = trial.matrices.get("P"), groups(trial)
    if p is None or own is None or wanted is None or len(p) != len(own):
        return np.nan
    entries = off_diagonal(p)[(wanted[:, None] == own[None]) == same]
    return float(np.nanmean(entries)) if np.isfinite(entries).any() else np.nan


def column_r(trial: FinishedTrial, options: dict[str, Any]) -> float:
    """Return Pearson's r of n_j and the mean over i of the change of alpha_ij."""
    return pearson(trial, 0)[0]


def row_r(trial: FinishedTrial, options: dict[str, Any]) -> float:
    """Return Pearson's r of n_i and the mean over j of the change of alpha_ij."""
    return pearson(trial, 1)[0]


def pearson(trial: FinishedTrial, axis: int) -> tuple[float, float]:
    """Return Pearson's r of the clients' training samples and the mean over an axis of the change of A, and its p."""
    from scipy.stats import pearsonr

    moved = change(trial)
    if moved is None or len(moved) < 3:
        return np.nan, np.nan
    x, y = sizes(trial), np.nanmean(moved, axis=axis)
    if np.ptp(x) == 0 or np.ptp(y) == 0:
        return np.nan, np.nan
    found = pearsonr(x, y)
    return float(found.statistic), float(found.pvalue)


def share_up(trial: FinishedTrial, options: dict[str, Any]) -> float:
    """Return the share of alpha_ij, j other than i, that end above their start."""
    moved = change(trial)
    return np.nan if moved is None else float(np.mean(moved[~np.isnan(moved)] > 1e-6))


AXES = {"alpha_column_r": 0, "alpha_row_r": 1}  # of those that are correlations
NUMBERS: dict[str, Callable[[FinishedTrial, dict[str, Any]], float]] = {
    "weights_within": within,
    "weights_across": across,
    "weights_to_target": to_target,
    "weights_to_rest": to_rest,
    "alpha_column_r": column_r,
    "alpha_row_r": row_r,
    "alpha_share_up": share_up,
}
