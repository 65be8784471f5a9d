"""`pflsweep report pgfed/table1`, `pflsweep report all`: pages, tables and figures, each report in a folder."""

from collections.abc import Iterable
from pathlib import Path

from pflsweep.config.reading import PAPER
from pflsweep.records import archive, ledger
from pflsweep.report import html
from pflsweep.report.paper import export, figures, layout, page
from pflsweep.report.paper.comparison import Comparison, others_needed, rulings
from pflsweep.report.paper.layout import Layout
from pflsweep.report.paper.links import Tracker, Untracked
from pflsweep.report.paper.store import Store
from pflsweep.util import files
from pflsweep.util.errors import UserError, nearest

DISCUSSION = "DISCUSSION.md"  # written by a person, beside the page that includes it


def build(
    names: Iterable[str],
    runs: Path,
    out: Path,
    scale: str | None,
    reading: str | None = None,
    tracker: Tracker | None = None,
) -> list[str]:
    """Write the reports of these names and the index; a line about each. scale, reading: None is each table's newest.
    tracker: who knows where the runs can be browsed, and keeps the reports with them.

    Raises UserError at the end where some could not be made.
    """
    if not archive.exists(runs):
        raise UserError(
            f"There is no folder of runs '{runs}' here. Train a table first (`pflsweep -m sweep=pgfed/table1 "
            "scale=smoke`), or name another folder: --runs DIR."
        )
    every = ledger.ledgers(*archive.places(runs))
    _check_known("scale", scale, {ledger.scale for ledger in every}, runs)
    _check_known("reading", reading, {ledger.reading for ledger in every}, runs)
    stores: dict[tuple[str, str], Store] = {}
    said: list[str] = []
    errors: dict[str, UserError] = {}
    try:
        for name in names:
            try:
                of = layout.read(name)
                chosen = ledger.newest(every, of.sweeps, scale, reading)
                kept = stores.setdefault(chosen, Store(runs, chosen[0], every, chosen[1]))
                said.append(_one(of, kept, out, tracker or Untracked()))
            except UserError as error:
                errors[name] = error
        broken = {name: str(error) for name, error in errors.items() if not isinstance(error, PageNotRebuilt)}
        said.append(f"{export.write_index(_made(out), broken)}: how far each report is")
    except OSError as error:
        raise page.unwritable(out, error) from error
    if errors:
        raise UserError("\n".join([*said, *(f"{name}: {error}" for name, error in errors.items())]))
    return said


def _one(of: Layout, store: Store, out: Path, tracker: Tracker) -> str:
    figures.check(of)
    table, folder, ledgers = Comparison(of, store), _made(out / of.name), store.of(of.sweeps)
    _check_kept(folder, store)
    others = [Comparison(layout.read(other), store) for other in others_needed(of)]
    ruled = list(rulings(table, [other for other in others if _sound(other)]))
    drawn = figures.draw(table, folder)
    discussion = folder / DISCUSSION
    said = discussion.read_text() if discussion.exists() else ""
    text = page.text(table, ruled, drawn, tracker.links(ledgers, table.trials), said)
    contents = {
        "README.md": text,
        "page.html": html.page(text, folder),
        "table.csv": export.as_csv(table),
        "table.tex": export.as_latex(table),
    }
    for name, content in contents.items():
        files.write_text(folder / name, content)
    pictures = [(folder / name).with_suffix(kind) for name in drawn for kind in (".png", ".svg")]
    kept = tracker.keep(of.name, [*(folder / name for name in contents), *pictures], ledgers)
    files.write_json(folder / export.STATE, export.state(table, ruled))
    stands = f"{table.complete} of {table.fillable} cells complete at scale {store.scale}{_read(store)}"
    return f"{folder / 'README.md'}: {stands}" + ("; MLflow has it with the sweep's run" if kept else "")


class PageNotRebuilt(UserError):  # noqa: N818 (no error of what is there)
    """A page stays as it is."""


def _check_kept(folder: Path, store: Store) -> None:
    """Raises Kept where the page that is there was made of trials that are not here: it could not be made anew."""
    lost = [identity for identity in export.trials_of(folder) if not store.holds(identity)]
    if lost:
        raise PageNotRebuilt(
            f"The page in {folder} stays as it is: {len(lost)} trials of it are not in '{store.runs}'. --out DIR makes "
            "another elsewhere; `pflsweep record import` brings its records (a checkout's are in reports/runs)."
        )


def _sound(of: Comparison) -> bool:
    """Whether a table can be made; where not, its own report says why."""
    try:
        return bool(of.made)
    except UserError:
        return False


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _read(store: Store) -> str:
    """Return the words for a reading that is not the paper's."""
    return "" if store.reading == PAPER else f", reading {store.reading}"


def _check_known(what: str, name: str | None, there: set[str], runs: Path) -> None:
    """Raises UserError where a scale or reading is asked for that no sweep has."""
    known = sorted(there)
    if name is not None and name not in known:
        raise UserError(
            f"--{what} {name}: no sweep in '{runs}' was at that {what}.{nearest(name, known)} "
            f"There are: {', '.join(known) or 'none yet'}."
        )
