"""The wheel and the source distribution: each installs alone, and works in any folder without a checkout."""

import os
import subprocess
import sys
import sysconfig
import tarfile
import venv
from pathlib import Path

import pytest

from pflsweep import __version__

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent
OWN = f"pflsweep-{__version__}"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel and the source distribution of this checkout."""
    out = tmp_path_factory.mktemp("dist")
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-d", str(out)], cwd=ROOT, check=True)
    return out


@pytest.fixture(scope="module")
def from_sdist(built: Path) -> Path:
    """The wheel that pip makes of the source distribution."""
    out = built / "from_sdist"
    _pip("wheel", "--no-deps", "--no-build-isolation", "-w", str(out), str(built / f"{OWN}.tar.gz"))
    return out / f"{OWN}-py3-none-any.whl"


@pytest.fixture(scope="module")
def command(from_sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The command `pflsweep` of an environment in which nothing but that wheel is installed.

    What pflsweep depends on is found where this Python has it, since installing PyTorch anew would take minutes. A path
    file leads there; other path files there, such as that of an editable pflsweep, are not read.
    """
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, symlinks=True)
    _pip("--python", str(folder / "bin/python"), "install", "--no-deps", str(from_sdist))
    libraries = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    (site,) = folder.glob("lib/python*/site-packages")
    (site / "libraries.pth").write_text("\n".join(sorted(libraries)))
    return folder / "bin/pflsweep"


def _pip(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "pip", "--no-input", "-q", *arguments], check=True)


def pflsweep(command: Path, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return subprocess.run(
        [command, *arguments], cwd=folder, env=kept, capture_output=True, text=True, timeout=300, check=False
    )


def test_both_are_the_same(built: Path, from_sdist: Path) -> None:
    """The wheel that is made of the source distribution is that of the checkout, byte by byte."""
    assert from_sdist.read_bytes() == (built / from_sdist.name).read_bytes()


def test_the_source_distribution_can_be_tested(built: Path) -> None:
    """It has what tests and documentation read, and no evidence: the archives of records are of 45 MB."""
    with tarfile.open(built / f"{OWN}.tar.gz") as content:
        names = {name.removeprefix(f"{OWN}/") for name in content.getnames()}
    for name in ("conf/config.yaml", "sweeps/pgfed/table1.yaml", "tests/conftest.py", "docs/design.md", "CITATION.cff"):
        assert name in names
    assert {"constraints.txt", "LICENSE", "README.md", "CHANGELOG.md", "reports/methods.md"} <= names
    reports = [name for name in names if name.startswith("reports/")]
    assert not [name for name in reports if name.startswith("reports/runs/") or name.endswith("/page.html")]
    assert "pflsweep/report/templates/page.html" in names
    assert (built / f"{OWN}.tar.gz").stat().st_size < 4e6


def test_readmes_first_command(command: Path, tmp_path: Path) -> None:
    """The four methods of README's first command train in an empty folder, tracked as there."""
    line = next(line for line in (ROOT / "README.md").read_text().splitlines() if "-e . && pflsweep" in line)
    words = line.partition(" && pflsweep ")[2].split()
    done = pflsweep(command, tmp_path, *words, "train.rounds=1")
    assert done.returncode == 0, done.stderr
    assert [name in done.stdout for name in ("local", "fedavg", "pgfed", "fedala")] == [True] * 4
    assert len(list((tmp_path / "runs").glob("*/meta.json"))) == 4
    assert (tmp_path / "mlflow.db").exists()


def test_its_own_code_runs(command: Path, tmp_path: Path) -> None:
    own = subprocess.run(
        [command.with_name("python"), "-c", "import pflsweep; print(pflsweep.__file__)"],
        cwd=tmp_path,
        env={},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert own.startswith(str(command.parents[1]))
    assert pflsweep(command, tmp_path, "--version").stdout == f"pflsweep {__version__}\n"


def test_listing(command: Path, tmp_path: Path) -> None:
    done = pflsweep(command, tmp_path, "list", "datasets")
    assert "cifar10" in done.stdout
    assert done.returncode == 0


def test_the_papers_sweeps(command: Path, tmp_path: Path) -> None:
    listed = pflsweep(command, tmp_path, "list", "sweeps")
    assert "14 methods x 6 settings x 3 seeds" in listed.stdout
    planned = pflsweep(command, tmp_path, "-m", "sweep=pgfed/table2", "only=[pgfed]", "scale=smoke", "plan=true")
    assert planned.returncode == 0, planned.stderr
    assert "pgfed/table2 at scale smoke: 9 trials" in planned.stdout
    assert list(tmp_path.iterdir()) == []


def test_the_papers_reports(command: Path, tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    made = pflsweep(command, tmp_path, "report", "pgfed/table1")
    assert made.returncode == 0, made.stderr
    assert "0 of 84 cells complete, scale paper" in made.stdout
