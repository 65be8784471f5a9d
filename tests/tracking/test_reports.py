"""Reports of tables in a real MLflow store: linked to their runs, and kept with the sweep's run."""

import subprocess
import sys
from pathlib import Path

import pytest

from pflsweep.commands.main import main
from pflsweep.records.ledger import ledgers
from pflsweep.tracking import reports as tracking_reports
from pflsweep.tracking import run as tracking_run
from pflsweep.tracking import sweep_run
from pflsweep.tracking.overview import SweepRun as About
from tests.report.paper.fixtures import Sweep
from tests.tracking.test_run import empty, store  # noqa: F401 (fixtures)

# Warnings of MLflow and SQLAlchemy
pytestmark = pytest.mark.filterwarnings("ignore")
C25 = "cifar10/clients25"
ID = "0123456789abcdef"
PAGE = Path("reports/pgfed/table1/README.md")


def tracked(runs: Path, monkeypatch: pytest.MonkeyPatch, **ledger: object) -> Sweep:
    """Return a sweep with two methods of one seed, whose runs are in the store."""
    sweep = Sweep(runs, seeds=(0,))
    records = [*sweep.add(C25, "local", {0: [4] * 4}), *sweep.add(C25, "pgfed", {0: [7] * 4})]
    sweep_run.open_sweep(records[0].tracking, ID, About("pgfed/table1", {}, {}))
    monkeypatch.setenv(tracking_run.SWEEP, ID)
    for record in records:
        with tracking_run.open_run(record.tracking, record) as run:
            run.finish(record, "finished")
    sweep.write(ID, **ledger)
    return sweep


def files(store, run_id: str, folder: str = "reports/pgfed/table1") -> set[str]:  # noqa: F811
    return {Path(each.path).name for each in store.client.list_artifacts(run_id, folder)}


@pytest.mark.slow
@pytest.mark.parametrize("said", [{}, {"tracking": {"backend": "mlflow", "uri": None, "experiment": "pflsweep"}}])
def test_a_report_links_to_its_runs_and_is_kept_with_the_sweeps(
    said: dict,
    store,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
) -> None:
    """said: what the ledger says about tracking; older ledgers say nothing, then the trials' configs do."""
    tracked(Path("runs"), monkeypatch, **said)
    runs = {run.info.run_name: run.info.run_id for run in store.runs()}
    parent = runs.pop("pgfed/table1")
    assert main(["report", "pgfed/table1"]) == 0
    assert "MLflow has it with the sweep's run" in capsys.readouterr().out
    text = PAGE.read_text()
    for run in (parent, *runs.values()):
        assert f"](http://127.0.0.1:5000/#/experiments/{_experiment(store)}/runs/{run}?" in text
    # Two numbers beside the published ones make no picture
    pictures = {f"curves.{kind}" for kind in ("png", "svg")}
    made = {"README.md", "page.html", "table.csv", "table.tex"} | pictures
    assert files(store, parent) == made
    stray = Path("old.png")
    stray.write_bytes(b"")
    store.client.log_artifact(parent, str(stray), "reports/pgfed/table1")
    assert files(store, parent) == {*made, "old.png"}
    assert main(["report", "pgfed/table1"]) == 0
    assert files(store, parent) == made, "a report takes the place of the one before"
    described = store.client.get_run(parent).data.tags["mlflow.note.content"]
    assert described.count("reports/pgfed/table1/page.html") == 1
    kept = Path(store.client.download_artifacts(parent, "reports/pgfed/table1/README.md"))
    assert kept.read_text() == text


def _experiment(store) -> str:  # noqa: F811
    return store.client.get_experiment_by_name("pflsweep").experiment_id


def test_a_sweep_that_was_not_tracked_has_no_links(store) -> None:  # noqa: F811
    sweep = Sweep(Path("runs"), seeds=(0,))
    sweep.add(C25, "local", {0: [4] * 4})
    sweep.write(ID, tracking={"backend": "none", "uri": None, "experiment": "pflsweep"})
    assert main(["report", "pgfed/table1"]) == 0
    assert "](http" not in PAGE.read_text()


def test_a_look_for_runs_creates_no_experiment(store, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    tracked(Path("runs"), monkeypatch, tracking={"backend": "mlflow", "uri": None, "experiment": "another"})
    assert main(["report", "pgfed/table1"]) == 0
    assert "another" not in {each.name for each in store.client.search_experiments()}
    assert "](http" not in PAGE.read_text()


@pytest.mark.parametrize(
    ("own", "used"), [("http://me:secret@host:5000", True), ("http://me:secret@other:5000", False)]
)
def test_the_password_of_a_server_is_that_of_the_environment(
    own: str, used: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A ledger has none."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", own)
    sweep = Sweep(tmp_path / "runs", seeds=(0,))
    sweep.add(C25, "local", {0: [4] * 4})
    sweep.write(ID, tracking={"backend": "mlflow", "uri": "http://me@host:5000", "experiment": "pflsweep"})
    (ledger,) = ledgers(sweep.runs)
    assert tracking_reports._options(ledger, []).uri == (own if used else "http://me@host:5000")


@pytest.mark.slow
def test_without_a_store_none_is_made_and_mlflow_not_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    sweep = Sweep(Path("runs"), seeds=(0,))
    sweep.add(C25, "local", {0: [4] * 4})
    sweep.write(ID)
    code = (
        "import sys; from pflsweep.commands.main import main\n"
        "code = main(['report', 'pgfed/table1'])\n"
        "sys.exit(code or bool({'mlflow', 'torch'} & set(sys.modules)))"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    assert not Path("mlflow.db").exists()
    assert "](http" not in PAGE.read_text()


@pytest.mark.slow
def test_a_damaged_store_costs_a_warning_and_no_report(
    store,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    tracked(Path("runs"), monkeypatch)
    Path("mlflow.db").write_text("this is a diary\n" * 100)
    assert main(["report", "pgfed/table1"]) == 0
    assert "MLflow cannot be asked for the runs of this report: " in caplog.text
    assert "the same command sends it again" not in caplog.text
    assert "](http" not in PAGE.read_text()


@pytest.mark.slow
def test_a_store_that_fails_meanwhile_costs_a_report_its_links_alone(
    store,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture,
) -> None:
    tracked(Path("runs"), monkeypatch)

    def find(*_: object) -> None:
        raise OSError("the server is gone")

    monkeypatch.setattr(tracking_reports, "find", find)
    assert main(["report", "pgfed/table1"]) == 0
    assert "MLflow has it" not in capsys.readouterr().out
    assert "MLflow did not take the report pgfed/table1: " in caplog.text
    assert "the server is gone" in caplog.text
    assert PAGE.exists()
