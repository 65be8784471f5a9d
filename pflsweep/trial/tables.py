"""Convert the engine's results to rows of the record's tables."""

from typing import Any

import numpy as np
import pandas as pd

from pflsweep.data.federation import Federation
from pflsweep.engine.evaluate import Scores
from pflsweep.engine.simulation import Privacy, RoundResult


def round_row(result: RoundResult) -> dict[str, Any]:
    """Return the round's row in rounds.parquet."""
    row: dict[str, Any] = {
        "round": result.round,
        "lr": result.lr,
        "cohort": len(result.ids),
        "images": result.images,
        "seconds": result.seconds,
        "eval_seconds": result.eval_seconds,
        **result.traffic._asdict(),
    }
    row.update(score_columns(result.scores))
    row.update(privacy_columns(result.privacy))
    row.update({f"show_{name}": float(value) for name, value in result.shown.items() if value.dim() == 0})
    return row


def privacy_columns(privacy: Privacy | None) -> dict[str, float]:
    """Return epsilon over the clients that have trained so far, composed over all rounds, and of this round alone."""
    if privacy is None:
        return {}
    composed, alone = (np.asarray(epsilon) for epsilon in privacy)
    return {
        "epsilon": float(composed.mean()),
        "epsilon_std": float(composed.std()) if np.isfinite(composed).all() else float("nan"),
        "epsilon_max": float(composed.max()),
        "epsilon_round": float(alone.mean()),
    }


def score_columns(scores: dict[str, Scores]) -> dict[str, float]:
    """Return the columns of an evaluation, such as personal_accuracy, or personal_all_accuracy for the target `all`."""
    return {f"{view}_{name}": value for view, seen in scores.items() for name, value in score_summary(seen).items()}


def score_summary(scores: Scores) -> dict[str, float]:
    """Return a view's mean scores over the clients that have samples; NaN if none has."""
    has = scores.n > 0
    if not has.any():
        return dict.fromkeys(("accuracy", "accuracy_weighted", "std", "worst10", "f1", "loss"), np.nan)
    accuracy = np.sort(scores.accuracy[has])
    return {
        "accuracy": float(accuracy.mean()),
        "accuracy_weighted": float(scores.correct.sum() / scores.n.sum()),
        "std": float(accuracy.std()),
        "worst10": float(accuracy[: max(1, len(accuracy) // 10)].mean()),
        "f1": float(scores.f1[has].mean()),
        "loss": float(scores.loss[has].mean()),
    }


def client_rows(result: RoundResult) -> pd.DataFrame | None:
    """Return the round's rows in clients.parquet; None if it was not evaluated."""
    return score_table(result.scores, result.round) if result.scores else None


def score_table(scores: dict[str, Scores], round: int) -> pd.DataFrame:
    """Return one row per client, view and target, in 32-bit types: thousands of rounds make millions of rows."""
    tables = []
    for name, seen in scores.items():
        view, _, target = name.partition("_")
        table = pd.DataFrame({"round": round, "view": view, "target": target or "own", "client": range(len(seen.n))})
        whole = dict.fromkeys(("round", "client", "n", "correct"), np.int32)
        table = table.assign(n=seen.n, correct=seen.correct, loss=seen.loss, f1=seen.f1)
        tables.append(table.astype({**whole, "loss": np.float32, "f1": np.float32}))
    return pd.concat(tables, ignore_index=True)


def new_client_table(scores: list[Scores], keys: np.ndarray) -> pd.DataFrame:
    """Return one row per new client and epoch of its fine-tuning; epoch 0 is before the first.

    keys: numbers of the new clients in the partition, [N].
    """
    tables = [score_table({"new": seen}, epoch).assign(client=keys) for epoch, seen in enumerate(scores)]
    return pd.concat(tables, ignore_index=True).drop(columns=["view", "target"]).rename(columns={"round": "epoch"})


def matrices(result: RoundResult) -> dict[str, np.ndarray]:
    """Return the method's matrices of a round by name."""
    return {name: value.cpu().numpy() for name, value in result.shown.items() if value.dim() == 2}


def partition_table(federation: Federation) -> pd.DataFrame:
    """Return counts of training, validation and test samples, one row per client and class, with the client's group
    where the partition has groups.
    """
    clients, classes = federation.clients, federation.classes
    columns = {"client": np.arange(clients).repeat(classes), "class": np.tile(np.arange(classes), clients)}
    if federation.group is not None:
        columns["group"] = federation.group.repeat(classes)
    columns |= {split: federation.counts(split).ravel() for split in ("train", "validation", "test")}
    return pd.DataFrame(columns)
