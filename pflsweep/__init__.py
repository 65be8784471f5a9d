"""pflsweep: declarative experiment sweeps for personalised federated learning."""

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pflsweep.util.errors import Diverged as Diverged

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from pflsweep.trial.result import Result

__version__ = "0.2.0"


def run(
    overrides: str | Sequence[str] | None = None,
    config_dir: str | Path | None = None,
    *,
    partition: str | Mapping[str, Sequence[Any]] | None = None,
    cohorts: Sequence[Any] | None = None,
    batches: Mapping[tuple[int, int], Sequence[Any]] | None = None,
    **keys: Any,
) -> "Result":
    """Train one trial, as the command would, and return its result. A trial that is finished is not trained again.

    Overrides are a text, a list of texts or keywords, in which `__` is the dot of a key; these three are the same:

        run("algorithm=pgfed train.rounds=5")
        run(["algorithm=pgfed", "train.rounds=5"])
        run(algorithm="pgfed", train__rounds=5)

    Without MLflow, unless an override names `tracking`. What follows takes the place of what the trial would draw, and
    a hash of it is part of the trial's identity (docs/commands.md):

    partition: the name of an option, or {"train": [...], "test": [...]}, with an array of row numbers of the dataset
    for each client, and "validation" too where it is not drawn by data.validation.
    cohorts: for each round the numbers of its clients, which count from 0.
    batches: for each (round, client) of a cohort, rounds from 1, an array of row numbers for each step of its local
    training, in order.

    Raises pflsweep.util.errors.UserError on bad input, and pflsweep.Diverged where no client's loss is finite any more.
    """
    from pflsweep.config.compose import compose
    from pflsweep.config.keys import key_of, put
    from pflsweep.data.prescribed import prescribed
    from pflsweep.trial.run import run_trial

    if isinstance(partition, str):
        partition, keys = None, {"partition": partition, **keys}
    words = _untracked(overrides, keys)
    config = compose(words, config_dir)
    given = prescribed(partition, cohorts, batches)
    if given.digest is not None:
        put(config.values, "data.prescribed", given.digest)
    return run_trial(config, prescribed=None if given.digest is None else given, given_keys=map(key_of, words))


def run_sweep(
    overrides: str | Sequence[str] | None = None, config_dir: str | Path | None = None, **keys: Any
) -> "pd.DataFrame":
    """Train a sweep, as the command does with -m, and return its finished final trials, a row each (see `load`).

    Overrides are as for `run`; a keyword's list has the values that are swept:

        run_sweep("algorithm=local,pgfed seed=0,1,2")
        run_sweep(algorithm=["local", "pgfed"], seed=range(3))

    A trial that fails or diverges does not end the others; it is named on stderr. So is the number of trials whose
    records are on another machine. Raises pflsweep.util.errors.UserError on bad input, and if no trial has finished.
    """
    from pflsweep.report.frame import trials
    from pflsweep.sweep.call import run_command
    from pflsweep.sweep.status.summary import final_records, missing
    from pflsweep.util.errors import UserError

    sweep = run_command(_untracked(overrides, keys, several=True), config_dir)
    if sweep is None:
        raise UserError("plan=true trains nothing, so that there are no trials to return: leave it out.")
    found = trials(record for record, _ in final_records(sweep))
    left_out = missing(sweep, len(found))
    if found.empty:
        raise UserError(left_out or "No trial of this sweep has finished; the lines above say why.")
    if left_out:
        print(f"pflsweep: {left_out}", file=sys.stderr)
    return found


def load(runs: str | Path = "runs", searches: bool = False) -> "pd.DataFrame":
    """Return the finished trials of a folder of runs, or of an archive of them, as one DataFrame: one row per trial.

    searches: also those by which a sweep has chosen hyperparameters; their `role` is search, that of all others final.

    Its columns are method, dataset, partition, model and seed; by full key, such as train.lr, what can change numbers,
    without keys that have no effect; and the results. It has all of them, and shows those that tell the trials apart.
    Accuracies are means over clients in [0, 1], of the personal models after the last round; `best` is that of the best
    round, chosen on test data. docs/commands.md lists the results. Raises pflsweep.util.errors.UserError where there is
    no finished run.
    """
    from pflsweep.records.select import choose
    from pflsweep.report.frame import of_chosen
    from pflsweep.util.errors import UserError

    if os.path.exists(Path(runs) / "meta.json"):
        parent = Path(runs).absolute().parent
        raise UserError(f"'{runs}' is the folder of one record: give the folder of runs that it is in, '{parent}'.")
    chosen = choose(Path(runs), [])
    found = of_chosen(chosen, searches)
    if not found.empty:
        return found
    if chosen.finished:
        count = len(chosen.finished)
        raise UserError(f"The {count} finished runs in '{runs}' are of searches: load(..., searches=True) has them.")
    left = f" ({len(chosen.unfinished)} not finished)" if chosen.unfinished else ""
    raise UserError(f"There is no finished run in '{runs}'{left}. Name another folder, or train something first.")


def plot(trials: "pd.DataFrame") -> "Figure":
    """Return the accuracy by round of trials of one setting as a figure: one line per method, with its band over seeds.

    trials: what `run_sweep` or `load` returned, or rows of it. Raises pflsweep.util.errors.UserError where these are of
    several settings.
    """
    from pflsweep.report import frame

    return frame.plot(trials)


def plot_gains(trials: "pd.DataFrame", baseline: str | None = None) -> "Figure":
    """Return what each client gains over a baseline method, by default the first, as a figure. trials: see `plot`."""
    from pflsweep.report import frame

    return frame.plot_gains(trials, baseline)


def _untracked(overrides: str | Sequence[str] | None, keys: dict[str, Any], several: bool = False) -> list[str]:
    """Return the overrides of a call, without MLflow unless one of them names `tracking`."""
    from pflsweep.config.overrides import words_of

    words = words_of(overrides, keys, several)
    return words if any(word.startswith("tracking") for word in words) else [*words, "tracking=none"]
