"""The wheel contains conf/, sweeps/ and Hydra's plug-in, and works in any folder."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the content of the wheel."""
    out = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(out)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = out.glob("pflsweep-*-py3-none-any.whl")
    with zipfile.ZipFile(wheel) as content:
        content.extractall(out / "site")
    return out / "site"


def pflsweep(site: Path, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    code = "import sys, pflsweep; print(pflsweep.__file__); from pflsweep.commands.main import main; sys.exit(main())"
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
        timeout=300,
    )


def test_a_trial_and_a_sweep_from_another_folder(site: Path, tmp_path: Path) -> None:
    done = pflsweep(site, tmp_path, "-m", "algorithm=local,fedavg", "train.rounds=1", "tracking=none")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(str(site)), "the wheel's own package ran"
    assert len(list((tmp_path / "runs").glob("*/meta.json"))) == 2


def test_listing(site: Path, tmp_path: Path) -> None:
    done = pflsweep(site, tmp_path, "list", "datasets")
    assert "cifar10" in done.stdout
    assert done.returncode == 0


def test_the_papers_sweeps(site: Path, tmp_path: Path) -> None:
    listed = pflsweep(site, tmp_path, "list", "sweeps")
    assert "14 methods x 6 settings x 3 seeds" in listed.stdout
    planned = pflsweep(site, tmp_path, "-m", "sweep=pgfed/table2", "only=[pgfed]", "scale=smoke", "plan=true")
    assert planned.returncode == 0, planned.stderr
    assert "pgfed/table2 at scale smoke: 9 trials" in planned.stdout
    assert list(tmp_path.iterdir()) == []


def test_the_papers_reports(site: Path, tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    made = pflsweep(site, tmp_path, "report", "pgfed/table1")
    assert made.returncode == 0, made.stderr
    assert "0 of 84 cells complete, scale paper" in made.stdout
