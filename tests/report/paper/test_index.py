"""The index of a folder of reports: its picture and its table."""

import json
from pathlib import Path

import pytest

from pflsweep.report.paper import index

STANDING = {"complete": 11, "cells": 138, "agree": 8, "compared": 19, "difference": "7.1 points", "tau": "0.90",
            "failed": 0, "claims": {"holds": 1}}  # fmt: skip


def left(folder: Path, name: str, **readings: dict) -> None:
    """Write what a report leaves of itself."""
    (folder / name).mkdir(parents=True)
    of = {"title": name, "scale": "small", "readings": readings, "trials": []}
    (folder / name / index.STATE).write_text(json.dumps(of))


@pytest.mark.parametrize(
    ("standing", "cells"),
    [
        ({"complete": 11, "cells": 138, "agree": 8, "compared": 19}, (8, 11, 0, 119)),
        ({"complete": 162, "cells": 486, "agree": 0, "compared": 0}, (0, 0, 162, 324)),
        ({"complete": 0, "cells": 0, "agree": 0, "compared": 0}, (0, 0, 0, 0)),
    ],
)
def test_cells_agree_or_do_not_or_are_not_in_print_or_have_no_number(standing: dict, cells: tuple[int, ...]) -> None:
    assert index.shares(standing) == pytest.approx([100 * n / max(standing["cells"], 1) for n in cells])


def test_the_index_has_a_bar_and_a_line_for_each_reading_and_names_what_is_not_made(tmp_path: Path) -> None:
    left(tmp_path, "fedpg/table1", paper=STANDING, code=STANDING | {"agree": 19})
    left(tmp_path, "pgfed/table1", paper=STANDING)
    text = index.write(tmp_path, {"pgfed/table2": "a <broken> table"}).read_text()
    rows = [line for line in text.splitlines() if line.startswith("| [")]
    assert [row.split(" | ")[1] for row in rows] == ["paper", "code", "paper"]
    assert "| pgfed/table2 | | | | | | | | | **error**: a &lt;broken&gt; table |" in text
    assert "pgfed/table3" in text.partition("Without a page so far")[2]
    assert text.index("(index.png)") < text.index("| report |")
    assert {"index.png", "index.svg"} <= {file.name for file in tmp_path.iterdir()}
    axes = index.picture(index.states(tmp_path)).axes[0]
    assert len(axes.patches) == 3 * len(index.PARTS)
    assert axes.patches[len(index.PARTS)].get_width() == pytest.approx(100 * 19 / 138)


def test_an_index_without_reports_has_no_picture(tmp_path: Path) -> None:
    assert "index.png" not in index.write(tmp_path, {}).read_text()
    assert [file.name for file in tmp_path.iterdir()] == ["index.md"]
