"""What a record and MLflow keep of a partition: its numbers, picture and groups, and the new clients."""

from pathlib import Path

import numpy as np
import pytest

from pflsweep.config.compose import compose
from pflsweep.data.partition.stats import emd
from pflsweep.records.record import Record
from pflsweep.trial.result import Result
from pflsweep.trial.run import Stopped, run_trial
from pflsweep.util.errors import UserError

SMALL = ["partition.clients=8", "model.hidden=[16]", "train.epochs=1", "train.rounds=2", "train.threads=1"]
LATENT = "partition=latent partition.clusters=4 model@partition.embedder=mlp partition.components=8 data.root=data"


pytestmark = pytest.mark.usefixtures("elsewhere")


def run(*overrides: str) -> Result:
    return run_trial(compose([*SMALL, "tracking=none", *overrides]))


def test_a_record_has_the_numbers() -> None:
    record = run().record
    counts = record.partition.pivot_table("train", "client", "class").to_numpy()
    found = record.meta["statistics"]
    assert found["clients"] == 8
    assert found["size_mean"] == counts.sum(1).mean()
    assert (found["size_min"], found["size_max"]) == (counts.sum(1).min(), counts.sum(1).max())
    assert found["classes_mean"] == (counts > 0).sum(1).mean()
    assert found["emd"] == pytest.approx(emd(counts).mean())
    assert found["emd_code"] == 2 * found["emd"]
    assert "group" not in record.partition
    assert record.new_clients.empty


def test_one_federation_serves_all_seeds() -> None:
    """partition.seed determines the rows and those that are held back; the trial's seed models and cohorts."""
    first, second, other = (
        run(f"seed={seed}", f"partition.seed={drawn}", "data.validation=0.2").record
        for seed, drawn in ((1, 7), (2, 7), (1, 8))
    )
    assert first.partition.equals(second.partition)
    assert not first.partition.equals(other.partition)
    assert first.folder.name != second.folder.name
    assert not first.rounds["personal_accuracy"].equals(second.rounds["personal_accuracy"])
    usual = run("seed=7", "data.validation=0.2").record
    assert usual.partition.equals(first.partition), "what seed=7 would draw"


OWN = """
import numpy as np
from pflsweep.data.partition import iid
drawn = np.random.default_rng()
def hidden(dataset, seed, clients):
    return iid.split(dataset, int(drawn.integers(1 << 30)), clients, 0.25)
def open(dataset, seed, clients):
    return iid.split(dataset, int(np.random.randint(1 << 30)), clients, 0.25)
def fewer(dataset, seed, clients):
    return iid.split(dataset, seed, clients - 2, 0.25)
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of options with partitions that do not follow from their seed, and one that has too few clients."""
    (tmp_path / "drawing_parts.py").write_text(OWN)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "partition").mkdir()
    for name in ("hidden", "open", "fewer"):
        (tmp_path / "partition" / f"{name}.yaml").write_text(f"_target_: drawing_parts.{name}\nclients: 8\n")
    return tmp_path


def test_a_partition_that_draws_from_a_global_generator_is_refused(own: Path) -> None:
    said = r"partition=open.* draws from the global generator of NumPy .*cuts the dataset.*generator\(seed"
    with pytest.raises(UserError, match=said):
        run_trial(compose([*SMALL, "tracking=none", "partition=open"], own))


def test_a_partition_with_fewer_clients_than_its_option_says_is_refused(own: Path) -> None:
    said = r"partition=fewer.* returned 6 clients, and partition.clients is 8: return as many, or"
    with pytest.raises(UserError, match=said):
        run_trial(compose([*SMALL, "tracking=none", "partition=fewer"], own))


def test_a_trial_does_not_go_on_with_other_rows(own: Path) -> None:
    words = [*SMALL, "tracking=none", "partition=hidden", "train.eval_every=1"]
    run_trial(compose([*words, "train.rounds=1"], own))
    with pytest.raises(UserError, match=r"other rows than those that trained the record's 1 rounds"):
        run_trial(compose(words, own))


def test_a_latent_trial_keeps_groups_and_the_embedders_accuracy() -> None:
    quick = [*LATENT.split(), "partition.training.augment=none", "partition.training.epochs=2"]
    first = run(*quick).record
    assert first.partition.groupby("client")["group"].first().tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert 0.2 < first.meta["statistics"]["embedder_accuracy"] < 1
    assert first.meta["data_checksum"] != run().record.meta["data_checksum"], "with what was learnt"
    assert run(*quick).record.folder == first.folder, "the same trial"


def test_new_clients_fine_tune_at_the_end() -> None:
    record = run("data.new=3", "data.new_epochs=4", "train.lr=0.1").record
    table = record.new_clients
    assert sorted(set(table["epoch"])) == [0, 1, 2, 3, 4]
    assert table.groupby("epoch")["client"].nunique().tolist() == [3] * 5
    assert record.partition["client"].nunique() == 5
    assert set(record.clients["client"]) == set(range(5)), "none of them is evaluated with the others"
    loss = table.groupby("epoch")["loss"].mean()
    assert loss[4] < loss[0]
    again = Record(record.folder).new_clients
    assert again.equals(table)


@pytest.mark.slow
def test_new_clients_fine_tune_the_model_of_the_round_that_was_asked_for() -> None:
    new = ["data.new=2", "data.new_epochs=1"]
    one = run(*new, "train.rounds=1").record.new_clients
    longer = run(*new, "train.rounds=4").record
    assert longer.new_clients.equals(run(*new, "train.rounds=4", "paths.runs=other").record.new_clients)
    assert not longer.new_clients.equals(one)
    assert run(*new, "train.rounds=1").record.new_clients.equals(one)
    cut = Record(longer.folder)
    cut.truncate(3)
    said = (
        r"no scores of new clients with the model of round 3, only of 1 and 4: ask for train\.rounds=4\. .* paths\.runs"
    )
    for ask in (lambda: cut.new_clients, lambda: run(*new, "train.rounds=3")):
        with pytest.raises(UserError, match=said):
            ask()


def test_new_clients_stop_after_an_epoch_and_the_same_command_goes_on(capsys: pytest.CaptureFixture) -> None:
    new = ["data.new=2", "data.new_epochs=3", "train.rounds=1"]
    epochs = 0

    def stop() -> bool:
        nonlocal epochs
        epochs += Record(next(Path("runs").iterdir())).done == 1
        return epochs > 2

    with pytest.raises(Stopped):
        run_trial(compose([*SMALL, "tracking=none", *new]), stop=stop)
    assert "2 new clients fine-tune for 3 epochs" in capsys.readouterr().err
    stopped = Record(next(Path("runs").iterdir()))
    assert (stopped.status["status"], stopped.done) == ("interrupted", 1)
    ended = run(*new).record
    assert len(stopped.rounds) == 1, "no round is trained again"
    assert ended.new_clients.equals(run(*new, "paths.runs=other").record.new_clients)


def test_too_few_rounds_for_scores_of_new_clients_name_rounds_that_have_them() -> None:
    new = ["data.new=2", "data.new_epochs=1", "train.eval_every=2"]
    run(*new, "train.rounds=5")
    for rounds in (2, 3):
        with pytest.raises(UserError, match=rf"no scores of new clients with the model of round {rounds}, only of 5"):
            run(*new, f"train.rounds={rounds}")


def test_a_method_without_a_global_model_starts_from_the_first_one() -> None:
    new = ["data.new=2", "data.new_epochs=1"]
    tables = [run(*new, f"algorithm={name}").record.new_clients for name in ("local", "fedamp")]
    assert tables[0].equals(tables[1])


def test_permuted_targets_test_another_distribution() -> None:
    wanted = ["partition=pathological", "partition.balanced=true", "train.rounds=6", "algorithm=local", "train.lr=0.1"]
    own, other = run(*wanted), run(*wanted, "data.targets=permuted")
    assert own.personal_accuracy.last > 0.8
    assert other.personal_accuracy.last < own.personal_accuracy.last - 0.2
    assert own.rounds["images"].equals(other.rounds["images"])


@pytest.mark.slow
# Warnings of MLflow and SQLAlchemy
@pytest.mark.filterwarnings("ignore")
def test_mlflow_has_them_as_metrics() -> None:
    from mlflow import MlflowClient

    record = run_trial(compose([*SMALL, "data.new=2", "data.new_epochs=3"])).record
    client = MlflowClient("sqlite:///mlflow.db")
    (found,) = client.search_runs([client.get_experiment_by_name("pflsweep").experiment_id])
    metrics, table = found.data.metrics, record.new_clients
    for name, value in record.meta["statistics"].items():
        assert metrics[f"partition/{name}"] == pytest.approx(value)
    accuracy = (table["correct"] / table["n"]).groupby(table["epoch"]).mean()
    assert metrics["new/accuracy_before"] == pytest.approx(accuracy[0])
    assert metrics["new/accuracy_after"] == pytest.approx(accuracy[3])
    assert np.isfinite(metrics["summary/accuracy"])
