"""The examples in README and docs/adding_a_method.md run as printed, and links between the pages resolve."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
GUIDE = (ROOT / "docs" / "adding_a_method.md").read_text()
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")])


def blocks(text: str) -> list[str]:
    """Return the Python and YAML blocks of a page: a method, its option, its search space."""
    return re.findall(r"^```(?:python|yaml)\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)


EXAMPLES = {"server_step": blocks(README), "slowmo": blocks(GUIDE)[:3]}  # a method's name -> method, option, space


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a user's folder with the files of all examples except the search spaces."""
    (tmp_path / "my_conf" / "algorithm").mkdir(parents=True)
    for name, (method, option, _) in EXAMPLES.items():
        (tmp_path / f"{name}.py").write_text(method)
        (tmp_path / "my_conf" / "algorithm" / f"{name}.yaml").write_text(option)
    partition, option = blocks(GUIDE)[3:]
    (tmp_path / "my_conf" / "partition").mkdir()
    (tmp_path / "halving.py").write_text(partition)
    (tmp_path / "my_conf" / "partition" / "halving.yaml").write_text(option)
    return tmp_path


def pflsweep(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        "-c",
        "import sys; from pflsweep.commands.main import main; sys.exit(main())",
        *arguments,
    ]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)


@pytest.mark.slow
def test_the_examples_are_options_like_all_others(folder: Path) -> None:
    algorithms = ["fedavg", *EXAMPLES]
    chosen = f"algorithm={','.join(algorithms)}"
    done = pflsweep(folder, "--config-dir", "my_conf", "-m", chosen, "train.rounds=3", "tracking=none")
    assert done.returncode == 0, done.stderr
    table = [line.split() for line in done.stdout.splitlines()]
    rows = {line[0]: line for line in table if line and line[0] in algorithms}
    assert set(rows) == set(algorithms)
    assert {line[-1] for line in rows.values()} == {"110,420"}, "floats sent"
    assert len({line[2] for line in rows.values()}) == 3, "each server rule changes the accuracy"


@pytest.mark.slow
@pytest.mark.parametrize(("page", "name"), [(README, "server_step"), (GUIDE, "slowmo")], ids=["README", "docs"])
def test_the_examples_pass_the_conformance_suite(folder: Path, page: str, name: str) -> None:
    (command,) = re.findall(rf"^    pflsweep (check {name}\..*)$", page, flags=re.MULTILINE)
    option = yaml.safe_load(EXAMPLES[name][1])
    assert command.split() == ["check", option.pop("_target_"), *(f"{key}={value}" for key, value in option.items())]
    done = pflsweep(folder, *command.split())
    assert done.returncode == 0, done.stdout + done.stderr
    assert "properties hold" in done.stdout


@pytest.mark.slow
def test_the_examples_are_tuned_over_their_own_spaces(folder: Path) -> None:
    chosen = f"algorithm={','.join(EXAMPLES)}"
    command = ("--config-dir", "my_conf", "-m", chosen, "tune=grid", "plan=true", "tracking=none")
    refused = pflsweep(folder, *command)
    assert refused.returncode == 2
    assert "there is no search space for 'server_step'" in refused.stderr
    assert "sweeps/space/server_step.yaml" in refused.stderr
    (folder / "sweeps/space").mkdir(parents=True)
    for name, page in (("server_step", README), ("slowmo", GUIDE)):
        file = f"sweeps/space/{name}.yaml"
        assert f"`{file}`" in page
        (folder / file).write_text(EXAMPLES[name][2])
    done = pflsweep(folder, *command)
    assert done.returncode == 0, done.stderr
    assert re.search(r"server_step +- +2 +3 ", done.stdout), "two points, and the winner's trial"
    assert re.search(r"slowmo +- +4 +5 ", done.stdout), "four points, and the winner's trial"


@pytest.mark.slow
def test_the_partition_of_the_guide_is_an_option(folder: Path) -> None:
    given = ("--config-dir", "my_conf", "partition=halving", "partition.seed=0", "train.rounds=1", "tracking=none")
    done = pflsweep(folder, *given)
    assert done.returncode == 0, done.stderr
    assert "of 6 clients" in done.stderr
    refused = pflsweep(folder, *given, "partition.test_fraction=2.0")
    assert refused.returncode == 2
    assert "partition.test_fraction is 2.0" in refused.stderr


def test_the_example_of_given_inputs_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    pages = blocks((ROOT / "docs" / "commands.md").read_text())
    (example,) = [block for block in pages if "pflsweep.run(" in block and "cohorts=" in block]
    names: dict[str, Any] = {}
    exec(example, names)
    assert names["result"].rounds["images"].tolist() == [16, 16], "two clients' two batches of four"
    assert names["result"].record.meta["name"] == "fedavg-digits-dirichlet-prescribed-0"


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
def test_commands_name_what_exists(folder: Path, page: Path) -> None:
    """Every option and sweep that a page's commands choose exists."""
    groups = "algorithm|ala|attack|dataset|model|partition|setting|tracking|tune"
    chosen = re.findall(rf"(?<![\w.])({groups})=([\w/]+(?:,[\w/]+)*)", page.read_text())
    sweeps = re.findall(r"(?<![\w.])sweep=([\w/]+)", page.read_text())
    assert chosen or sweeps or "pflsweep -m " not in page.read_text()
    for group, options in chosen:
        for option in options.split(","):
            own = folder / "my_conf" / group / f"{option}.yaml"
            assert (ROOT / "conf" / group / f"{option}.yaml").exists() or own.exists(), f"{group}={option}"
    for sweep in sweeps:
        assert (ROOT / "sweeps" / f"{sweep}.yaml").exists(), sweep


def anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub gives to a page's headings."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_relative_links_resolve(page: Path) -> None:
    """A link without a scheme leads to a file of the checkout, and to a heading of it if it names one."""
    for link in re.findall(r"\]\((?!\w+:)([^)]+)\)", page.read_text()):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        assert target.is_relative_to(ROOT.resolve()), link
        assert not anchor or anchor in anchors(target), link


def test_readme_is_short_and_leads_to_every_page_of_docs() -> None:
    assert len(README.split()) <= 900
    for page in (ROOT / "docs").glob("*.md"):
        assert f"(docs/{page.name})" in README, page.name
    assert not re.findall(r"^[A-Z_]{4,}$", README, flags=re.MULTILINE), "a placeholder"


def test_the_table_that_is_shown_is_the_committed_one() -> None:
    """The table in docs/reports.md has the values, ours and printed ones, of reports/fedpg/table1."""
    table = pd.read_csv(ROOT / "reports" / "fedpg" / "table1" / "table.csv")
    table = table[table["dataset"] == "fmnist"].set_index(["method_label", "metric"])
    page = (ROOT / "docs" / "reports.md").read_text()
    shown = re.findall(r"^\| ([^|]+) \| ([\d.]+ \([\d.]+\).*) \|$", page, flags=re.MULTILINE)
    filled = table.dropna(subset="value").index.get_level_values(0)
    assert [name for name, _ in shown] == list(dict.fromkeys(filled))
    for name, cells in shown:
        for metric, cell in zip(("l_acc", "s_acc", "g_acc", "gm_acc"), cells.split(" | "), strict=True):
            if (name, metric) not in table.index:
                assert cell == "-"
                continue
            made = table.loc[name, metric]
            ours, printed = cell.removesuffix(")").split(" (")
            assert float(printed) == made["printed"], (name, metric)
            value = np.nan if ours == "none" else float(ours)
            assert value == pytest.approx(made["value"], abs=6e-4, nan_ok=True), (name, metric)
