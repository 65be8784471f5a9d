"""Numbers of one run: accuracies by round and client, speed, communication, and curves of them."""

from collections.abc import Callable, Iterable
from typing import NamedTuple, Protocol

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from pflsweep.records.record import VIEWS, Record
from pflsweep.util.timing import rate

# Words for the rows that a score is of, by what follows the view in a column's name
TARGETS = {"": "", "subset": " S-acc", "all": " G-acc", "validation": " on validation data"}


class Curve(NamedTuple):
    """Accuracy in [0, 1] by round; low and high are the band, equal to the mean where there is none."""

    label: str
    rounds: NDArray[np.float64]
    mean: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]


class HasRounds(Protocol):
    """A record, or what a report has kept of one."""

    @property
    def rounds(self) -> pd.DataFrame: ...


class HasNewClients(Protocol):
    """A record, or what a report has kept of one, with the clients that took part in no round."""

    @property
    def new_clients(self) -> pd.DataFrame: ...


class Summary(NamedTuple):
    """One run in a line. Accuracies are unweighted means over the clients that have test data, in [0, 1]."""

    last: float  # of the personal models, in the last evaluated round
    best: float  # of any evaluated round: chosen on test data
    best_round: int
    std: float  # over clients, last evaluated round
    worst10: float  # mean of the worst 10% of the clients, last evaluated round
    global_last: float  # of the global model; NaN if there is none
    rounds: int
    seconds: float
    images_per_second: float  # of training
    floats_down: float  # per client and round, mean over the rounds
    floats_up: float


def summary(record: Record) -> Summary:
    """Return a run in a line; accuracies are NaN, and the best round is 0, where no client was ever scored."""
    rounds = record.rounds
    accuracies = rounds.set_index("round")["personal_accuracy"].dropna()
    return Summary(
        last=_last(rounds, "personal_accuracy"),
        best=float(accuracies.max()),
        best_round=0 if accuracies.empty else int(accuracies.index[int(accuracies.argmax())]),
        std=_last(rounds, "personal_std"),
        worst10=_last(rounds, "personal_worst10"),
        global_last=_last(rounds, "global_accuracy"),
        rounds=int(record.status["rounds"]),
        seconds=float(record.status["seconds"]),
        images_per_second=images_per_second(record),
        floats_down=float(column(rounds, "floats_down").mean()),
        floats_up=float(column(rounds, "floats_up").mean()),
    )


def column(rounds: pd.DataFrame, name: str) -> pd.Series:
    """Return a column of a record's rounds, of NaN if the record has none: what was not measured is not known."""
    return rounds[name] if name in rounds else pd.Series(np.nan, rounds.index, name=name)


def images_per_second(record: HasRounds) -> float:
    """Return how many images a second were trained, without evaluation; NaN if it is not known."""
    rounds = record.rounds
    return float(rate(column(rounds, "images").sum(min_count=1), rounds["seconds"].sum()))


def at_last(record: HasRounds, name: str) -> float:
    """Return a column of the rounds in the last evaluated one; NaN if the record has no such column or round."""
    return _last(record.rounds, name)


def _last(rounds: pd.DataFrame, name: str) -> float:
    """Return a column in the last evaluated round of a table; NaN without such a column or round."""
    found = column(rounds, name)[rounds["personal_accuracy"].notna()]
    return np.nan if found.empty else float(found.iloc[-1])


def by_round(record: HasRounds, column: str = "personal_accuracy") -> pd.Series:
    """Return a column of the rounds that have it, by round."""
    return record.rounds[["round", column]].dropna().set_index("round")[column]


def rounds_to(record: HasRounds, goal: float) -> float:
    """Return the first evaluated round whose mean personalised accuracy is at least `goal`; NaN if none is."""
    rounds = record.rounds
    # Means of equal numbers may be a last bit below them
    return float(rounds.loc[rounds["personal_accuracy"] >= goal - 1e-9, "round"].min())


def client_accuracy(clients: pd.DataFrame, view: str = "personal", target: str = "own") -> pd.Series:
    """Return accuracy by client, from the rows of one round; clients without test data are left out."""
    where = clients.get("target", "own") == target  # older records have own rows alone
    shown = clients[(clients["view"] == view) & where & (clients["n"] > 0)]
    return (shown["correct"] / shown["n"]).set_axis(shown["client"]).sort_index()


def new_clients_accuracy(record: HasNewClients) -> pd.Series:
    """Return the mean accuracy of clients that took part in no round, by epoch of fine-tuning; empty without such
    clients.
    """
    table = record.new_clients
    if table.empty:
        return pd.Series(dtype=float)
    table = table[table["n"] > 0]
    return (table["correct"] / table["n"]).groupby(table["epoch"]).mean()


def record_curves(record: Record) -> list[Curve]:
    """Return one run's accuracies by round, whatever was evaluated."""
    curves = []
    for name in evaluated([record]):
        found = by_round(record, f"{name}_accuracy")
        values = found.to_numpy(dtype=float)
        curves.append(Curve(view_in_words(name), found.index.to_numpy(dtype=float), values, values, values))
    return [curve for curve in curves if len(curve.rounds)]


def mean_curve(
    label: str, seeds: list[pd.Series], edges: Callable[[NDArray[np.float64]], tuple[float, float]] | None = None
) -> Curve:
    """Return one curve of a series for each seed: the mean of what all of them have. edges: of the numbers at one
    place, where the band ends; without it, for one seed and at a single place, there is none.
    """
    wide = pd.concat(seeds, axis=1, join="inner").sort_index()
    values, at = wide.to_numpy(dtype=float), wide.index.to_numpy(dtype=float)
    mean = values.mean(axis=1)
    low, high = mean, mean
    if edges and len(seeds) > 1 and len(at) > 1:
        low, high = np.array([edges(each) for each in values]).reshape(-1, 2).T
    return Curve(label, at, mean, low, high)


def evaluated(records: Iterable[Record]) -> list[str]:
    """Return each view that some record has, or view_target where the data is not the client's own.

    A metric that is called something_accuracy itself is none of them.
    """
    columns = dict.fromkeys(str(column) for record in records for column in record.rounds)
    scores = [name for name in columns if name.startswith(VIEWS) and name.endswith("_accuracy")]
    names = [name.removesuffix("_accuracy") for name in scores]
    return [name for name in names if name.partition("_")[2] in TARGETS]


def view_in_words(name: str) -> str:
    """Return the words for a column of accuracies: personal, but `personal S-acc` on a subset of the clients' test data
    and `personal G-acc` on all of it.
    """
    view, _, target = name.partition("_")
    return view + TARGETS[target]
