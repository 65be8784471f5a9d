"""The pages under reports/ can be written from the records under reports/runs by anyone, without training."""

import re
import shutil
from contextlib import chdir
from pathlib import Path

import pytest

from pflsweep.commands.report import main
from pflsweep.report import lines

ROOT = Path(__file__).parents[2]
PAGES = [file.parent.relative_to(ROOT / "reports").as_posix() for file in ROOT.glob("reports/*/*/README.md")]


@pytest.mark.slow
@pytest.mark.parametrize("name", PAGES)
def test_a_committed_page_is_what_its_records_say(name: str, tmp_path: Path) -> None:
    committed = ROOT / "reports" / name
    (tmp_path / name).mkdir(parents=True)
    if (committed / "DISCUSSION.md").exists():
        shutil.copy(committed / "DISCUSSION.md", tmp_path / name)
    with chdir(ROOT):
        assert main([name, "--runs", "reports/runs", "--out", str(tmp_path)]) == 0
    for file in ("README.md", "page.html", "table.csv", "table.tex"):
        assert told(tmp_path / name / file) == told(committed / file), f"pflsweep report {name} anew"
    assert indexed(tmp_path)[name] == indexed(ROOT / "reports")[name]


def told(file: Path) -> str:
    """Return a file's words without its pictures, whose last digits depend on the machine."""
    return re.sub(r'src="data:[^"]*"', "", file.read_text())


def indexed(folder: Path) -> dict[str, list[str]]:
    """Return the lines of an index by page, one a reading."""
    found: dict[str, list[str]] = {}
    for line in (folder / "index.md").read_text().splitlines():
        if line.startswith("| ["):
            found.setdefault(line.split("[")[1].split("]")[0], []).append(line)
    return found


def test_the_index_has_each_page() -> None:
    assert "fedpg/table1" in PAGES
    assert set(indexed(ROOT / "reports")) == {*PAGES, "benchmark"}


@pytest.mark.slow
def test_curves_have_a_panel_for_each_accuracy_of_a_setting(tmp_path: Path) -> None:
    """FedPG's table 1 has accuracies on own, shared and all data, and of the global model, which Local lacks."""
    with chdir(ROOT):
        assert main(["fedpg/table1", "--runs", "reports/runs", "--out", str(tmp_path)]) == 0
    drawn = (tmp_path / "fedpg/table1/curves.svg").read_text()
    kinds = ("", " personal subset", " personal all", " global all")
    methods = {kind: set(re.findall(rf'id="curve fmnist/pat2{kind} (\S+)"', drawn)) for kind in kinds}
    personal = methods[""]
    assert {"local", "fedavg", "fedpg"} <= personal & methods[" personal subset"] & methods[" personal all"]
    assert {"fedavg", "fedpg"} <= methods[" global all"]
    assert not {"local", "fedamp"} & methods[" global all"]
    assert max(map(len, methods.values())) == lines.MOST, "the best of more rows"
