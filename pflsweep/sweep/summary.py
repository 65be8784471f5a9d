"""What ends a command: a table of its trials, and where to look next."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pflsweep.trial import Result


def conclusion(results: list["Result"]) -> str:
    """The table of `pflsweep report` in text, with its words explained."""
    from pflsweep.report.tables import brief

    table = brief([result.record for result in results]).to_string(index=False)
    rule = "-" * len(table.splitlines()[0])
    runs = results[0].record.folder.parent
    shown = runs.relative_to(Path.cwd()) if runs.is_relative_to(Path.cwd()) else runs
    tracked = any(result.config["tracking"]["backend"] != "none" for result in results)
    where = "" if runs == Path("runs").absolute() else f" --runs {shlex.quote(str(shown))}"
    browse = "`pflsweep ui` shows the runs in a browser; " if tracked else ""
    return "\n".join([
        rule,
        table,
        rule,
        "accuracy: mean over clients of their personalised models on their own test data, last round;",
        "seconds: with evaluation; images/s: without; floats sent: per client and round, down and up",
        f"Next: `pflsweep report runs{where}` writes a comparison; {browse}records are in {shown}/.",
    ])  # fmt: skip
