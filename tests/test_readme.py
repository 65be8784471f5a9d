"""README's example and single examples in docs/ run as printed, and links between the pages resolve."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from pflsweep.report import frame
from pflsweep.report.paper.claims import FORMS
from tests.test_tutorials import TUTORIALS
from tests.test_tutorials import blocks as tutorial_blocks
from tools import table_picture

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "reports/index.md", *(ROOT / "docs").glob("*.md")])


def blocks(text: str) -> list[str]:
    """Return the Python and YAML blocks of a page: a method, its option, its search space."""
    return re.findall(r"^```(?:python|yaml)\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)


METHOD, OPTION, SPACE = blocks(README)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a user's folder with the example's files except its search space."""
    (tmp_path / "my_conf" / "algorithm").mkdir(parents=True)
    (tmp_path / "server_step.py").write_text(METHOD)
    (tmp_path / "my_conf" / "algorithm" / "server_step.yaml").write_text(OPTION)
    return tmp_path


def pflsweep(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pflsweep", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)


@pytest.mark.slow
def test_the_example_is_an_option_like_all_others(folder: Path) -> None:
    chosen = "algorithm=fedavg,server_step"
    done = pflsweep(folder, "--config-dir", "my_conf", "-m", chosen, "train.rounds=3", "tracking=none")
    assert done.returncode == 0, done.stderr
    table = [line.split() for line in done.stdout.splitlines()]
    rows = {line[0]: line for line in table if line and line[0] in ("fedavg", "server_step")}
    assert len(rows) == 2
    assert {line[-1] for line in rows.values()} == {"110,420"}, "floats sent"
    assert len({line[2] for line in rows.values()}) == 2, "the server's rule changes the accuracy"


@pytest.mark.slow
def test_the_example_passes_the_conformance_suite(folder: Path) -> None:
    (command,) = re.findall(r"^    pflsweep (check server_step\..*)$", README, flags=re.MULTILINE)
    option = yaml.safe_load(OPTION)
    assert command.split() == ["check", option.pop("_target_"), *(f"{key}={value}" for key, value in option.items())]
    done = pflsweep(folder, *command.split())
    assert done.returncode == 0, done.stdout + done.stderr
    assert "properties hold" in done.stdout


@pytest.mark.slow
def test_the_example_is_tuned_over_its_own_space(folder: Path) -> None:
    command = ("--config-dir", "my_conf", "-m", "algorithm=server_step", "tune=grid", "plan=true", "tracking=none")
    refused = pflsweep(folder, *command)
    assert refused.returncode == 2
    assert "there is no search space for 'server_step'" in refused.stderr
    assert "sweeps/space/server_step.yaml" in refused.stderr
    (folder / "sweeps/space").mkdir(parents=True)
    assert "`sweeps/space/server_step.yaml`" in README
    (folder / "sweeps/space/server_step.yaml").write_text(SPACE)
    done = pflsweep(folder, *command)
    assert done.returncode == 0, done.stderr
    assert re.search(r"server_step +- +8 +9 ", done.stdout), "eight points, and the winner's trial"


def test_the_example_of_given_inputs_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    pages = blocks((ROOT / "docs" / "commands.md").read_text())
    (example,) = [block for block in pages if "pflsweep.run(" in block and "cohorts=" in block]
    names: dict[str, Any] = {}
    exec(example, names)
    assert names["result"].rounds["images"].tolist() == [16, 16], "two clients' two batches of four"
    assert names["result"].record.meta["name"] == "fedavg-digits-dirichlet-prescribed-0"


@pytest.mark.slow
def test_the_example_of_a_searchs_scale_is_planned(folder: Path) -> None:
    (command,) = re.findall(
        r"^    pflsweep (.* tune\.scale=.*)$", (ROOT / "docs" / "sweeps.md").read_text(), re.MULTILINE
    )
    done = pflsweep(folder, *command.split(), "only=[fedavg,fmnist/pat2]")
    assert done.returncode == 0, done.stderr
    assert re.search(r"fedavg fmnist/pat2 +3 +50 +8 +0 +150 ", done.stdout), "points of 50 rounds, final trials of 150"
    assert "fedpg/table1 at scale 150: 8 trials" in done.stdout
    assert "Searches at scale small: 0 of 1 are trained already, 1 are to be trained (3 trials)." in done.stdout


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_name_what_exists(page: Path) -> None:
    """Every option and sweep that a page's commands choose exists."""
    groups = "algorithm|ala|attack|dataset|model|partition|setting|tracking|tune"
    chosen = re.findall(rf"(?<![\w.])({groups})=(?!glob\()([\w/]+(?:,[\w/]+)*)", page.read_text())
    sweeps = re.findall(r"(?<![\w.])sweep=([\w/]+)", page.read_text())
    assert chosen or sweeps or "pflsweep -m " not in page.read_text()
    own = {block.title for tutorial in TUTORIALS for block in tutorial_blocks(tutorial)}  # files that a reader writes
    own.add("my_conf/algorithm/server_step.yaml")
    for group, options in chosen:
        for option in options.split(","):
            shipped = (ROOT / "conf" / group / f"{option}.yaml").exists()
            assert shipped or f"my_conf/{group}/{option}.yaml" in own, f"{group}={option}"
    for sweep in sweeps:
        assert (ROOT / "sweeps" / f"{sweep}.yaml").exists() or f"sweeps/{sweep}.yaml" in own, sweep


def anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub gives to a page's headings."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_site_has_every_page_of_docs() -> None:
    """A page that is not in the navigation of mkdocs.yml is found by nobody."""
    nav = (ROOT / "mkdocs.yml").read_text()
    for page in PAGES:
        assert f": {page.relative_to(ROOT).as_posix()}\n" in nav, page.name


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_relative_links_resolve(page: Path) -> None:
    """A link without a scheme leads to a file of the checkout, and to a heading of it if it names one."""
    for link in re.findall(r"\]\((?!\w+:)([^)]+)\)", page.read_text()):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        assert target.is_relative_to(ROOT.resolve()), link
        assert not anchor or anchor in anchors(target), link


def test_readme_is_short() -> None:
    assert len(README.split()) <= 900
    assert not re.findall(r"^[A-Z_]{4,}$", README, flags=re.MULTILINE), "a placeholder"


def test_what_is_shown_of_the_table_is_the_committed_one() -> None:
    """README's picture and sentences have the values of reports/fedpg/table1."""
    made = "`python -m tools.table_picture` makes it anew"
    assert table_picture.PICTURE.read_text(encoding="utf-8") == table_picture.picture(), made
    cells = table_picture.cells()
    own = cells["method"].str.contains("fedpg")
    for some, words in ((cells[own], "all {} cells agree"), (cells[~own], "{} of {} cells agree")):
        agree = int(some["agrees"].astype(bool).sum())
        assert words.format(agree, len(some)) in " ".join(README.split())
    assert cells[own]["agrees"].astype(bool).all()


def test_every_method_stands_once_on_the_page_by_idea() -> None:
    page = (ROOT / "docs" / "methods.md").read_text()
    table = page.partition("\n| idea |")[2].partition("\n\n")[0].replace("(`algorithm=`)", "")
    shipped = sorted(path.stem for path in (ROOT / "conf" / "algorithm").glob("*.yaml"))
    assert sorted(re.findall(r"`(\w+)`", table)) == shipped
    for name in ("methods", "config", "differences"):
        assert f"{len(shipped)} " in (ROOT / "docs" / f"{name}.md").read_text(), name


def test_the_columns_of_load_are_listed() -> None:
    page = (ROOT / "docs" / "commands.md").read_text()
    assert [name for name in frame.RESULTS if f"`{name}`" not in page] == []


def test_the_forms_of_a_claim_are_listed() -> None:
    page = (ROOT / "docs" / "own_table.md").read_text().partition("| form |")[2]
    assert [form for form in FORMS if f"`{form}`" not in page] == []


def test_each_dataset_is_listed_with_its_model() -> None:
    table = (ROOT / "docs" / "data.md").read_text().partition("| dataset |")[2].partition("\n\n")[0]
    rows = [[re.findall(r"`(\w+)`", cell) for cell in line.split("|")] for line in table.splitlines()[2:]]
    listed = {name: row[5][0] for row in rows for name in row[1]}
    for file in (ROOT / "conf" / "dataset").glob("*.yaml"):
        chosen = re.search(r"override /model@_global_.model: (\w+)", file.read_text())
        assert listed[file.stem] == (chosen[1] if chosen else "mlp"), file.stem
