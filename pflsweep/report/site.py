"""`pflsweep report site`: reports as a static site, of the same markdown: index, tables, leaderboard, methods.

Each page holds its pictures and its script, so that the site needs neither a server nor a network.
"""

import csv
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

from pflsweep.report import html, methods
from pflsweep.report.markdown import inline, table
from pflsweep.report.paper import index, layout
from pflsweep.util import files
from pflsweep.util.errors import UserError

HEADS = ("table", "reading", "row", "where", "metric", "unit", "ours", "published")
ALIGN = [":--"] * 5 + ["--:"] * 2  # of all but the first: text left, numbers right


def write(reports: Path, out: Path) -> Path:
    """Write a site of the reports in a folder, and return its first page. Raises UserError if there are none, or
    where it cannot be written.
    """
    states = index.states(reports)
    if not states or not (reports / "index.md").exists():
        raise UserError(
            f"There are no reports in '{reports}'. Make one first (`pflsweep report pgfed/table1`), or name another "
            "folder: --reports DIR."
        )
    boards = [name for name in states if layout.read(name).page == layout.LEADERBOARD]
    main = {"Tables": "index.html", **({"Leaderboard": f"{boards[0]}/index.html"} if boards else {})}
    main["Methods"] = html.address(methods.TABLE)
    try:
        texts = list(_texts(reports, states))
    except OSError as error:
        raise UserError(
            f"{error.filename} cannot be read ({error.strerror}). Restore it, or make the report again with `pflsweep "
            "report`."
        ) from error
    with files.writing(out, "--out DIR"):
        pages = {file for file, _, _ in texts}
        for file, text, folder in texts:
            up = "../" * file.count("/")
            nav = {name: f"{up}{address}" for name, address in main.items()}
            place = out / html.address(file)
            place.parent.mkdir(parents=True, exist_ok=True)
            files.write_text(place, html.page(text, folder, html.SitePage(file, pages, nav)))
    return out / "index.html"


def _texts(reports: Path, names: Iterable[str]) -> Iterator[tuple[str, str, Path]]:
    """Yield each page of a site: where its markdown lies in the reports, the markdown, and where its pictures are."""
    yield "index.md", (reports / "index.md").read_text("utf-8"), reports
    for name in names:
        yield f"{name}/README.md", (reports / name / "README.md").read_text("utf-8"), reports / name
    every, costs = methods.options(), methods.costs(reports)
    setting = "; ".join(map(str, dict.fromkeys(costs["when"])))
    yield methods.TABLE, methods.table(every, costs, f"({setting})" if setting else ""), reports
    for page, text in methods.pages(every, costs, _results(reports, names, every)).items():
        yield f"{methods.FOLDER}/{page}.md", text, reports


def _results(reports: Path, names: Iterable[str], every: list[methods.Option]) -> dict[str, str]:
    """Return a table of all our numbers of a method, by its page.

    A number is of the method that its trials were trained with, whatever its row is called: in FedPG's tables, FedProx
    under reading=code is FedAvg with one local step.
    """
    pages = {option.name: option.page for option in every}
    rows: dict[str, list[list[str]]] = defaultdict(list)
    for name in names:
        with open(reports / name / "table.csv", newline="", encoding="utf-8") as file:
            for line in csv.DictReader(file):
                page = pages.get(line.get("algorithm", ""))  # a table of an older version lacks it
                if page is not None and line["value"]:
                    link = f"[{inline(name)}](../{name}/README.md)"
                    ours = f"{float(line['value']):.4g}" + (f" ± {float(line['std']):.2g}" if line["std"] else "")
                    printed = line["printed"] + (f" ± {line['printed_std']}" if line["printed_std"] else "")
                    where = f"{line['dataset']}/{line['setting']}"
                    cells = (line["reading"], line["method_label"], where, line["metric"], line["unit"], ours, printed)
                    rows[page].append([link, *map(inline, cells)])
    return {page: table(HEADS, found, ALIGN) for page, found in rows.items()}
