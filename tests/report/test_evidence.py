"""The pages under reports/ are made of the records under reports/runs, by anyone, without training."""

import shutil
from contextlib import chdir
from pathlib import Path

import pytest

from pflsweep.report.cli import main

ROOT = Path(__file__).parents[2]
PAGES = [file.parent.relative_to(ROOT / "reports").as_posix() for file in ROOT.glob("reports/*/*/report.json")]


@pytest.mark.parametrize("name", PAGES)
def test_a_committed_page_is_what_its_records_say(name: str, tmp_path: Path) -> None:
    committed = ROOT / "reports" / name
    (tmp_path / name).mkdir(parents=True)
    if (committed / "READING.md").exists():
        shutil.copy(committed / "READING.md", tmp_path / name)
    with chdir(ROOT):
        assert main([name, "--runs", "reports/runs", "--out", str(tmp_path)]) == 0
    for file in ("README.md", "table.csv", "table.tex"):
        assert (tmp_path / name / file).read_text() == (committed / file).read_text(), f"pflsweep report {name} anew"


def test_there_are_some() -> None:
    assert "fedpg/table1" in PAGES
