"""The table that a command prints when its trials have ended, with a legend and where to look next."""

import shlex
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from pflsweep.records.record import Record
from pflsweep.report.tables import brief


def table_with_legend(
    records: Sequence[Record],
    searched: Collection[str] = (),
    partial: Collection[str] = (),
    names: Mapping[str, str] = {},
    page: str | None = None,
    tracked: bool = True,
) -> str:
    """Return the table of `pflsweep report` as text, with a legend below it.

    searched: keys that are hyperparameters.
    partial: identities of final trials whose search elected a winner although points have no result.
    names: as for `brief`.
    page: of the trials' table, beside the comparison of runs; None if they have none.
    tracked: whether the command sends runs to MLflow.
    """
    table = brief(records, searched, partial, names).to_string(index=False)
    rule = "-" * len(table.splitlines()[0])
    folders = Counter(record.folder.parent for record in records)
    runs = next((folder for folder in folders if folder.is_relative_to(Path.cwd())), next(iter(folders)))
    shown = runs.relative_to(Path.cwd()) if runs.is_relative_to(Path.cwd()) else runs
    judged = " or ".join(dict.fromkeys(scored_on(record.config) for record in records))
    where = "" if runs == Path("runs").absolute() else f" --runs {shlex.quote(str(shown))}"
    browse = "`pflsweep ui` shows the runs in a browser; " if tracked else ""
    own = "" if page is None else f"`pflsweep report {page}{where}` makes the table's page; "
    others = [
        f"{count} of {len(records)} records are in {folder}: "
        f"`pflsweep record import {shlex.quote(str(folder))}{where}` copies them first."
        for folder, count in folders.items()
        if folder != runs
    ]
    return "\n".join([
        rule,
        table,
        rule,
        f"accuracy: mean over clients of their personalised models on {judged}, last round;",
        "seconds: with evaluation; images/s: without; floats sent: per client and round, down and up",
        f"Next: {own}`pflsweep report runs{where}` writes a comparison; {browse}records are in {shown}/.",
        *others,
    ])  # fmt: skip


def scored_on(config: Mapping[str, Any]) -> str:
    """Return on which data a trial's clients are scored, in words. config: as in a record."""
    rows = "training" if config.get("metrics", {}).get("rows") == "train" else "test"
    whose = "another client's" if config.get("data", {}).get("targets") == "permuted" else "their own"
    return f"{whose} {rows} data"
