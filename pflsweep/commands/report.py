"""`pflsweep report`: write reports from records.

`pflsweep report runs [RUN...]` compares runs, `pflsweep report pgfed/table1` writes a paper's table again from the
user's runs, and `pflsweep report all` does so for each table. `pflsweep report site` makes a static site
of the reports.
"""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from pflsweep.commands.parser import Parser
from pflsweep.util import files
from pflsweep.util.errors import UserError, counted

if TYPE_CHECKING:
    from pflsweep.report.paper.layout import Layout

PAGES = ("runs", "site")  # those that are no paper's table
RUNS = "where records are (runs): a folder, or an archive of `record export`"


def main(argv: list[str]) -> int:
    """Write a report and return the exit code. Raises UserError on bad input."""
    from pflsweep.report.paper import layout

    pages = [*PAGES, "all", *layout.names()]
    try:
        options = _parser(pages).parse_args(argv or ["--help"])
    except UserError:
        _check_has_layout(argv, pages)
        raise
    return {"runs": _runs, "site": _site}.get(options.page, _papers)(options)


def _check_has_layout(argv: list[str], pages: list[str]) -> None:
    """Raise UserError if a report is asked for of a sweep that has no layout."""
    from pflsweep.util.resources import sweep_names

    name = next((word for word in argv if word in sweep_names() and word not in pages), None)
    if name is not None:
        raise UserError(
            f"report: there is a sweep '{name}', but no layout of its table: write reports/layouts/{name}.yaml, as "
            "docs/own_table.md says under 'Make the page'. Without one, `pflsweep report runs` compares its trials."
        )


def _site(options: argparse.Namespace) -> int:
    from pflsweep.report import site

    print(f"{site.write(options.reports, options.out)}: a static site; open it in a browser")
    return 0


def _papers(options: argparse.Namespace) -> int:
    """Write the pages of papers' tables."""
    from pflsweep.report.paper import layout
    from pflsweep.report.paper.build import build
    from pflsweep.tracking.reports import MlflowStores

    names = layout.names() if options.page == "all" else [options.page]
    if Path(f"reports/layouts/{options.page}.yaml").is_file():
        _check_own(layout.read(options.page), options.runs)
    print("\n".join(build(names, options.runs, options.out, options.scale, MlflowStores())))
    return 0


def _check_own(layout: "Layout", runs: Path) -> None:
    """Raise UserError if a layout of the user's own names a sweep, a row or a column that there is not."""
    from pflsweep.records import archive, ledger
    from pflsweep.report.paper import layout_checks
    from pflsweep.sweep.spec import read_table
    from pflsweep.util.resources import sweep_names

    # Records may come from elsewhere, without the file of their sweep, and a scale may have rows of its own
    trained = ledger.ledgers(*archive.places(runs)) if archive.exists(runs) else []
    known = sweep_names()
    layout_checks.require_allowed(
        "sweeps", layout.sweeps, list(dict.fromkeys([*known, *(each.sweep for each in trained)])),
        f"reports/layouts/{layout.name}.yaml",
    )  # fmt: skip
    begun = {cell for each in trained if each.sweep in layout.sweeps for cell in each.groups}
    cells = begun.union(*(read_table(sweep).cells for sweep in layout.sweeps if sweep in known))
    layout_checks.check_cells(layout, cells)
    for warning in layout_checks.rows_without_sweep(layout, cells):
        print(f"pflsweep: {warning}", file=sys.stderr)


def _runs(options: argparse.Namespace) -> int:
    """Write the comparison of runs. Return 2 where damaged records were left out, else 0."""
    from pflsweep.records.select import choose, comparable, without_searches
    from pflsweep.report import page, tables

    if options.target is not None:
        _check_target(options.target)
    chosen = without_searches(choose(options.runs, options.run), options.run)
    done = [record for record in chosen.records if comparable(record)]
    if not done:
        states = [*(f"{r.meta['name']} {r.status['status']}" for r in chosen.records), *chosen.damaged, *chosen.copies]
        searching = (
            [f"{counted(len(chosen.hidden), 'trial')} of searches, which no table shows"] if chosen.hidden else []
        )
        said = "; ".join([*states, *searching]).removesuffix(".") or "there are no runs"
        raise UserError(f"No finished run to report on in '{options.runs}': {said}. A report is made of finished runs.")
    with files.writing(options.out, "--out DIR"):
        path = page.write(chosen, options.out, options.baseline, options.target and options.target / 100)
    print(tables.brief(chosen.records, chosen.searches.keys, chosen.searches.partial).to_string(index=False))
    left, hidden = len(chosen.records) - len(done) + len(chosen.damaged) + len(chosen.copies), len(chosen.hidden)
    print(
        f"\n{path} and {path.with_suffix('.html').name}: {counted(len(done), 'run')}"
        + (f"; {counted(hidden, 'trial')} of searches left out" if hidden else "")
        + (f"; {left} not finished, damaged or copies, named at its end" if left else "")
    )
    print("runs.csv and runs.tex beside them: the same numbers for pandas and for LaTeX")
    for line in chosen.damaged:
        print(f"left out: {line}", file=sys.stderr)
    return 2 if chosen.damaged else 0


def _check_target(percent: float) -> None:
    """Raise UserError if the argument --target is not a percentage."""
    if not 0 < percent <= 100:
        raise UserError(f"--target {percent:g}: it is an accuracy in percent, at least 1 and at most 100.")
    # Every run reaches that in its first round
    if percent < 1:
        raise UserError(
            f"--target {percent:g}: it is in percent, not a share of 1. Do you mean --target {100 * percent:g}?"
        )


def _parser(pages: list[str]) -> argparse.ArgumentParser:
    parser = Parser(prog="pflsweep report", description="Reports made from records.")
    words = parser.add_subparsers(required=True, dest="page", metavar="PAGE", help=f"one of: {', '.join(pages)}")
    for page in pages[len(PAGES) :]:
        what = "each of the papers' tables" if page == "all" else f"the paper's table {page}"
        table = words.add_parser(page, description=f"Make {what} anew from a sweep's runs, beside what was printed.")
        table.add_argument("--runs", type=Path, default=Path("runs"), metavar="DIR", help=RUNS)
        table.add_argument("--out", type=Path, default=Path("reports"), metavar="DIR", help="where to write (reports)")
        table.add_argument("--scale", metavar="NAME", help="of which sweeps (paper if there is one, else the newest's)")
    about = "Make a static site of the reports in a folder: index, tables, leaderboard, methods. It needs no server."
    site = words.add_parser("site", help="a static site of all reports", description=about)
    site.add_argument(
        "--reports", type=Path, default=Path("reports"), metavar="DIR", help="where reports are (reports)"
    )
    site.add_argument("--out", type=Path, default=Path("site"), metavar="DIR", help="where to write (site)")
    runs = words.add_parser("runs", help="compare chosen runs", description="Compare runs: tables and figures.")
    runs.add_argument(
        "run", nargs="*", metavar="RUN",
        help="a record's folder, an identity or its beginning, or names like 'pgfed-*'; default: all but searches'",
    )  # fmt: skip
    runs.add_argument("--runs", type=Path, default=Path("runs"), metavar="DIR", help=RUNS)
    # The same folder as for the pages of tables
    out = Path("reports/comparison")
    runs.add_argument("--out", type=Path, default=out, metavar="DIR", help=f"where to write ({out})")
    runs.add_argument(
        "--baseline", metavar="METHOD", help="method to compare with (local, else fedavg, else the first)"
    )
    runs.add_argument("--target", type=float, metavar="PERCENT", help="show the first round that reaches it")
    return parser
