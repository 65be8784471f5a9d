"""Each tutorial in docs/ runs as a reader would run it: write its files, run its commands, compare its output."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
TUTORIALS = ("getting_started", "adding_a_method", "own_data", "own_table", "how_do_i")
FENCE = re.compile(r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```$', flags=re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
    """A fenced block of a page: a file where it has a title, commands (sh), or output of the last commands (text)."""

    kind: str
    title: str
    text: str


def blocks(page: str) -> list[Block]:
    """Return the blocks of a page of docs/ that a reader writes, runs or sees."""
    found = FENCE.findall((ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8"))
    return [block for block in (Block(*each) for each in found) if block.title or block.kind in ("sh", "text")]


def words(line: str) -> str:
    """Return a line without rules of tables and without the widths of columns."""
    return " ".join(re.sub(r"[-─━]{3,}", "", line).split())


def shows(line: str, seen: set[str]) -> bool:
    """Return whether a line of a tutorial is among the lines that were printed. " ..." at its end is any rest."""
    beginning = words(line).removesuffix(" ...")
    return words(line) in seen or (line.endswith(" ...") and any(each.startswith(f"{beginning} ") for each in seen))


@pytest.fixture
def shell(tmp_path: Path) -> dict[str, str]:
    """Return a reader's environment, in which `python` and `pflsweep` are those of this test."""
    (tmp_path / "bin").mkdir()
    for name, given in (("python", ""), ("pflsweep", "-m pflsweep")):
        (tmp_path / "bin" / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {given} "$@"\n')
        (tmp_path / "bin" / name).chmod(0o755)
    path = [str(tmp_path / "bin"), str(Path(sys.executable).parent), os.environ["PATH"]]
    return {**os.environ, "PATH": os.pathsep.join(path), "PYTHONPATH": str(ROOT), "COLUMNS": "120"}


@pytest.mark.slow
@pytest.mark.parametrize("page", TUTORIALS)
def test_a_tutorial_runs_as_it_is_written(page: str, tmp_path: Path, shell: dict[str, str]) -> None:
    folder, seen, shown = tmp_path / "work", set[str](), 0
    folder.mkdir()
    for block in blocks(page):
        if block.title:
            (folder / block.title).parent.mkdir(parents=True, exist_ok=True)
            (folder / block.title).write_text(block.text)
        elif block.kind == "sh":
            done = subprocess.run(
                ["bash", "-e", "-c", block.text], cwd=folder, env=shell, capture_output=True, text=True, timeout=500
            )
            assert done.returncode == 0, f"{block.text}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
            seen = {words(line) for line in (done.stdout + done.stderr).splitlines()}
        else:
            missing = [line for line in filter(str.strip, block.text.splitlines()) if not shows(line, seen)]
            assert not missing, f"not in the output: {missing}\n" + "\n".join(sorted(seen))
            shown += 1
    assert shown, "a tutorial shows what its commands print"


@pytest.mark.slow
def test_getting_started_compares_all_methods_where_longer_runs_are_there(
    tmp_path: Path, shell: dict[str, str]
) -> None:
    """A reader who came from README has runs of more rounds in the folder, which answer for those of five."""
    (look,) = [block for block in blocks("getting_started") if block.title == "look.py"]
    (tmp_path / look.title).write_text(look.text)
    longer = "pflsweep -m algorithm=local,fedavg,fedala train.rounds=6 tracking=none && python look.py"
    done = subprocess.run(["bash", "-e", "-c", longer], cwd=tmp_path, env=shell, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    printed = done.stdout.rpartition("method  seed  accuracy\n")[2]
    assert re.findall(r"^ *(\w+) +0 +0\.\d+$", printed, flags=re.MULTILINE) == ["local", "fedavg", "fedala", "ditto"]
    assert (tmp_path / "curves.png").exists()


def test_the_rest_of_a_line_may_be_left_out() -> None:
    seen = {"method seeds accuracy % rounds"}
    assert shows("method  seeds  accuracy % ...", seen)
    assert shows("method seeds accuracy % rounds", seen)
    assert not shows("method seeds accuracy %", seen)
    assert not shows("method seeds acc ...", seen)
    assert not shows("method accuracy % ...", seen)


def test_every_command_of_a_tutorial_is_run() -> None:
    """Each command of a tutorial is in a fenced block, since indented ones are not run."""
    assert shutil.which("bash")
    for page in TUTORIALS:
        text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
        assert not re.findall(r"^    (?:pflsweep|python) .*$", text, flags=re.MULTILINE), page
        assert any(block.kind == "sh" and "pflsweep" in block.text for block in blocks(page)), page
