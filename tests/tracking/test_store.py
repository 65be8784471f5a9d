"""The MLflow store as a file."""

from pathlib import Path

import pytest

from pflsweep.config.options import Tracking
from pflsweep.tracking import store
from pflsweep.util.resources import user_cache

# Warnings of MLflow and SQLAlchemy
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.mark.slow
def test_an_empty_store_is_kept_for_the_next_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cached store is of this MLflow version and empty; a damaged one is created again."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    made: list[str] = []
    real = store._make_tables
    monkeypatch.setattr(store, "_make_tables", lambda uri: (made.append(uri), real(uri)))
    for name in ("first", "second"):
        options = {"uri": f"sqlite:///{tmp_path / name / 'mlflow.db'}", "experiment": "e"}
        with store.opened(Tracking.of(options)) as (client, experiment):
            assert not client.search_runs([experiment])
            # MLflow's own experiment is not that of the folder for which the cached store was created
            assert client.get_experiment("0").artifact_location == (tmp_path / name / "mlruns/0").as_uri()
            client.create_run(experiment)
    assert len(made) == 1
    (kept,) = (tmp_path / "cache/pflsweep").iterdir()
    for damage in (b"", b"none", kept.read_bytes()[:5000]):
        kept.write_bytes(damage)
        options = Tracking.of({"uri": f"sqlite:///{tmp_path / str(len(made))}.db", "experiment": "e"})
        with store.opened(options) as (client, _):
            assert client.search_experiments()
    assert len(made) == 4


def test_tests_leave_the_users_cache_alone() -> None:
    """The commands that tests start keep their empty store, and nothing else, away from what the user has."""
    assert not user_cache().is_relative_to(Path.home() / ".cache")
    assert user_cache().parent.name.startswith("pflsweep-tests")
