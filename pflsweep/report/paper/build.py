"""`pflsweep report pgfed/table1`, `pflsweep report all`: pages, tables and figures, each report in a folder."""

from collections.abc import Iterable
from pathlib import Path

from pflsweep.config.reading import PAPER
from pflsweep.records import archive, ledger
from pflsweep.report import html
from pflsweep.report.paper import export, figures, index, layout, leaderboard_page, page
from pflsweep.report.paper.comparison import Comparison
from pflsweep.report.paper.links import Tracker, Untracked
from pflsweep.report.paper.reproduction import Stores, reproduction
from pflsweep.report.paper.store import TrialReader
from pflsweep.report.paper.verdict import split_why
from pflsweep.util import files
from pflsweep.util.errors import UserError, nearest

TEXTS = {"table": page.text, layout.LEADERBOARD: leaderboard_page.text}  # by a layout's `page`


def build(names: Iterable[str], runs: Path, out: Path, scale: str | None, tracker: Tracker | None = None) -> list[str]:
    """Write the reports of these names and the index; a line about each.

    scale: None is each table's best one (`Stores.best_scale`). tracker: knows where the runs can be browsed, and keeps
    the reports with them. Where some could not be made, print the lines about the others and raise UserError; where one
    ended in another exception, print why others could not be made, too, and raise that.
    """
    if not archive.exists(runs):
        raise UserError(
            f"There is no folder of runs '{runs}' here. Train a table first (`pflsweep -m sweep=pgfed/table1 "
            "scale=smoke`), or name another folder: --runs DIR."
        )
    trials = TrialReader(runs)
    stores = Stores(trials, ledger.ledgers(*trials.places))
    _check_known(scale, {ledger.scale for ledger in stores.every}, runs)
    said: list[str] = []
    errors: dict[str, Exception] = {}
    with files.writing(out, "--out DIR"):
        for name in names:
            try:
                said.append(_one(name, stores, out, scale, tracker or Untracked()))
            except Exception as error:  # whatever is wrong with one report, the others and the index are made
                errors[name] = error
        broken = {name: _said(error) for name, error in errors.items() if not isinstance(error, PageNotRebuilt)}
        said.append(f"{index.write(_make_folder(out), broken)}: how far each report is")
    if errors:
        print("\n".join(said))
        reasons = "\n".join(f"{name}: {_said(error)}" for name, error in errors.items())
        unexpected = [error for error in errors.values() if not isinstance(error, UserError)]
        if unexpected:
            print(reasons)
            raise unexpected[0]
        raise UserError(reasons)
    return said


def _said(error: Exception) -> str:
    """Return an error as text, with its type where the text is not made for a user."""
    return str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"


def _one(name: str, stores: Stores, out: Path, scale: str | None, tracker: Tracker) -> str:
    figures.check(layout.read(name))
    made = reproduction(name, stores, scale or stores.best_scale(layout.read(name).sweeps))
    folder = _make_folder(out / name)
    _check_kept(folder, stores.trials)
    ledgers = [each for table in made.readings.values() for each in table.store.of(made.layout.sweeps)]
    drawn = figures.draw(made.readings, folder)
    said = index.discussion(folder)
    text = TEXTS[made.layout.page](made, drawn, tracker.links(ledgers, made.trials), said)
    contents = {
        "README.md": text,
        "page.html": html.page(text, folder),
        "table.csv": export.as_csv(made.readings),
        "table.tex": "\n".join(map(export.as_latex, made.readings.values())),
    }
    for file, content in contents.items():
        files.write_text(folder / file, content)
    kept = tracker.keep(name, [*(folder / file for file in contents), *drawn.files(folder)], ledgers)
    files.write_json(folder / index.STATE, index.state(made, split_why(said)[0]))
    stands = "; ".join(
        f"{_reading_in_words(each)}{each.complete} of {each.fillable} cells complete" for each in made.readings.values()
    )
    return f"{folder / 'README.md'}: {stands}, scale {made.scale}" + (
        "; MLflow has it with the sweep's run" if kept else ""
    )


class PageNotRebuilt(UserError):  # noqa: N818 (no error of what is there)
    """A page stays as it is."""


def _check_kept(folder: Path, trials: TrialReader) -> None:
    """Raise PageNotRebuilt if the page that is there was made of trials that are not here: it could not be made
    anew.
    """
    lost = [identity for identity in index.trials_of(folder) if not trials.holds(identity)]
    if lost:
        raise PageNotRebuilt(
            f"The page in {folder} stays as it is: {len(lost)} trials of it are not in '{trials.runs}'. --out DIR "
            "makes another elsewhere; `pflsweep record import` brings its records (a checkout's are in reports/runs)."
        )


def _make_folder(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _reading_in_words(comparison: Comparison) -> str:
    """Return the words for a reading that is not the paper's."""
    return "" if comparison.store.reading == PAPER else f"reading {comparison.store.reading}, "


def _check_known(scale: str | None, there: set[str], runs: Path) -> None:
    """Raise UserError if a scale is asked for that no sweep has."""
    known = sorted(there)
    if scale is not None and scale not in known:
        raise UserError(
            f"--scale {scale}: no sweep in '{runs}' was at that scale.{nearest(scale, known)} "
            f"There are: {', '.join(known) or 'none yet'}."
        )
