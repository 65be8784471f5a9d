"""The pages under reports/ are made of the records under reports/runs, by anyone, without training."""

import re
import shutil
from contextlib import chdir
from pathlib import Path

import pytest

from pflsweep.report.cli import main

ROOT = Path(__file__).parents[2]
PAGES = [file.parent.relative_to(ROOT / "reports").as_posix() for file in ROOT.glob("reports/*/*/README.md")]


@pytest.mark.parametrize("name", PAGES)
def test_a_committed_page_is_what_its_records_say(name: str, tmp_path: Path) -> None:
    committed = ROOT / "reports" / name
    (tmp_path / name).mkdir(parents=True)
    if (committed / "READING.md").exists():
        shutil.copy(committed / "READING.md", tmp_path / name)
    with chdir(ROOT):
        assert main([name, "--runs", "reports/runs", "--out", str(tmp_path)]) == 0
    for file in ("README.md", "page.html", "table.csv", "table.tex"):
        assert told(tmp_path / name / file) == told(committed / file), f"pflsweep report {name} anew"
    assert indexed(tmp_path)[name] == indexed(ROOT / "reports")[name]


def told(file: Path) -> str:
    """A file's words, without the pictures in it: their last digits are a machine's own."""
    return re.sub(r'src="data:[^"]*"', "", file.read_text())


def indexed(folder: Path) -> dict[str, str]:
    """The lines of an index by page."""
    lines = (folder / "index.md").read_text().splitlines()
    return {line.split("[")[1].split("]")[0]: line for line in lines if line.startswith("| [")}


def test_the_index_has_each_page() -> None:
    assert "fedpg/table1" in PAGES
    assert set(indexed(ROOT / "reports")) == set(PAGES)
