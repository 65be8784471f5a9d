"""What a sweep costs: images as trials train them, speeds by records, and the page of plan=true."""

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
import torch

from pflsweep.commands.main import main
from pflsweep.config.compose import Config, compose
from pflsweep.sweep import cost
from pflsweep.sweep.cost import SIZES, DatasetSize
from pflsweep.sweep.plan import Group, Plan, changed
from pflsweep.sweep.search_space import Axis
from pflsweep.trial.build import build_dataset
from pflsweep.trial.progress import duration
from pflsweep.trial.run import run_trial
from pflsweep.util.errors import UserError

# Folders of datasets that may be on this machine
FOLDERS = {
    "mnist": "MNIST",
    "fmnist": "FashionMNIST",
    "cifar10": "cifar-10-batches-py",
    "cifar100": "cifar-100-python",
    "agnews_subset": "ag_news_csv",
}
SMALL = ["tracking=none", "model.hidden=[16]", "checkpoint.models=false"]


pytestmark = pytest.mark.usefixtures("elsewhere")


def trained(*words: str) -> tuple[int, int]:
    """Return the images that a trial's rounds are estimated to train on, and those that they do train on."""
    config = compose([*words, *SMALL, "train.rounds=8"])
    return cost.images_a_trial(config) - cost.images_of_new_clients(config), int(
        run_trial(config).rounds["images"].sum()
    )


def rows_of(config: Config) -> int:
    return cost.partition_size(config).rows


OWN_PARTITION = """
from pflsweep.data.partition import iid
def split(dataset, seed, clients, {option}):
    return iid.split(dataset, seed, clients, 0.25)
"""


@pytest.mark.parametrize("option", ["test_fraction", "anything"])
def test_a_partition_of_ones_own_costs_what_it_cuts(
    option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user's partition has an option test_fraction with another meaning; once the plan counted half of the training
    rows.
    """
    (tmp_path / f"own_{option}.py").write_text(OWN_PARTITION.format(option=option))
    (tmp_path / "partition").mkdir()
    (tmp_path / "partition" / "mine.yaml").write_text(
        f"_target_: own_{option}.split\nseed: null\nclients: 10\n{option}: 0.5\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    config = compose(["partition=mine", "train.epochs=2", "train.rounds=3", "train.participation=1", *SMALL], tmp_path)
    assert cost.partition_size(config)[:3] == (1347, 10, 10)
    assert cost.images_a_trial(config) == int(run_trial(config).rounds["images"].sum()) == 3 * 2 * 1347


def test_data_that_may_change_have_a_checksum(tmp_path: Path) -> None:
    assert cost.partition_size(compose(["partition.clients=10", *SMALL])).checksum == ""
    sums = []
    for name, row in (("a", 0), ("b", 1)):
        (tmp_path / f"{name}.json").write_text(json.dumps({"train": [[row], [2, 3]], "test": [[4], [5]]}))
        sums.append(
            cost.partition_size(compose(["partition=from_file", f"partition.path={tmp_path / name}.json"])).checksum
        )
    assert sums[0] != sums[1]
    assert "" not in sums


@pytest.mark.slow
@pytest.mark.parametrize("name", FOLDERS)
def test_published_sizes_are_those_of_the_files(name: str, real_data: Callable[[str], Path]) -> None:
    root = real_data(FOLDERS[name])
    dataset = build_dataset(compose([f"dataset={name}", f"data.root={root}"]))
    assert DatasetSize(dataset.train, len(dataset.y) - dataset.train, dataset.shape, dataset.classes) == SIZES[name]


@pytest.mark.parametrize("share", [0.2, 0.37])
def test_the_size_of_digits(share: float) -> None:
    config = compose([f"dataset.test_fraction={share}"])
    dataset = build_dataset(config)
    assert cost.dataset_size(config) == DatasetSize(dataset.train, len(dataset.y) - dataset.train, (1, 8, 8), 10)


def test_sizes_as_their_papers_and_options_say() -> None:
    """Datasets that may not be at hand have the sizes of MedMNIST 2, Office-Home, Tiny-ImageNet and AG News as
    published.
    """
    stated = {"organamnist": (58_850, 11), "office_home": (15_588, 65), "tiny_imagenet": (110_000, 200)}
    stated |= {"agnews": (127_600, 4), "svhn": (99_289, 10), "stl10": (13_000, 10), "cinic10": (270_000, 10)}
    stated |= {"emnist": (131_600, 47)}
    for name, (rows, classes) in stated.items():
        assert (SIZES[name].train + SIZES[name].test, SIZES[name].classes) == (rows, classes)
        about = next((Path(__file__).parents[2] / "conf" / "dataset").glob(f"{name}.yaml")).read_text()
        assert f"{rows:,} " in about
    assert SIZES["organamnist"].test == 17_778
    assert cost.dataset_size(compose(["dataset=office_home", "dataset.size=64"])).shape == (3, 64, 64)
    assert cost.dataset_size(compose(["dataset=agnews", "dataset.length=50"])).shape == (50,)
    letters = cost.dataset_size(compose(["dataset=emnist", "dataset.split=letters"]))
    assert (letters.train + letters.test, letters.classes) == (145_600, 26)
    without = compose(["+setting=fedala", "dataset=tiny_imagenet", "dataset.val=false"])
    assert rows_of(without) == 75_000
    domains = compose(["+setting=pgfed_office"])
    assert cost.images_a_round(domains) == round(round(15_588 * 0.85) * 5 / 20 * 5)


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ["partition=shards", "partition.clients=1", "partition.shards_per_client=1", "train.participation=1"],
        ["partition=shards", "train.participation=1", "train.epochs=3"],
        ["partition=dirichlet_client", "partition.clients=2", "train.participation=1"],
        ["partition=classes", "train.participation=1"],
        ["partition=shards", "partition.clients=1", "partition.shards_per_client=1", "data.limit=500"],
        ["partition=dirichlet_client", "partition.clients=2", "train.participation=0.5", "train.first_round=all"],
    ],
)  # fmt: skip
def test_images_are_exact_where_rows_divide(words: list[str]) -> None:
    said, found = trained(*words)
    assert said == found


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ["train.participation=1.0"],
        ["train.participation=1.0", "train.epochs=2", "algorithm=pgfed"],
        ["partition=iid", "train.participation=0.3"],
        ["train.participation=1.0", "data.validation=0.2"],
        ["train.participation=1.0", "data.limit=900", "partition.least=8", "partition.clients=10"],
        ["partition=iid", "data.new=5", "train.participation=0.5"],
        ["partition=pathological", "train.participation=1.0", "algorithm=fedala"],
        # A cohort of one client
        ["partition=iid", "partition.clients=7", "train.participation=0.01"],
        # Without `clients` all natural clients are used
        ["dataset=synthetic", "partition=natural", "train.participation=1.0"],
    ],
)
def test_images_are_within_2_percent(words: list[str]) -> None:
    said, found = trained(*words)
    assert said == pytest.approx(found, rel=0.02)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "times"),
    [(["algorithm=ditto"], 2), (["algorithm=fedfomo"], 0.8), (["algorithm=fedfomo", "algorithm.validation=0.5"], 0.5)],
)
def test_images_are_fedavgs_whatever_a_method_trains_on(words: list[str], times: float) -> None:
    said, found = trained("partition=iid", "train.participation=1.0", *words)
    assert said == trained("partition=iid", "train.participation=1.0")[0]
    assert found == pytest.approx(times * said, rel=0.03)


def test_some_of_the_natural_clients() -> None:
    whole, some = (
        compose(["dataset=synthetic", "partition=natural", f"partition.clients={n}"]) for n in ("null", "10")
    )
    assert rows_of(some) == round(rows_of(whole) / 3)


def test_all_natural_clients_without_the_new_ones_make_a_cohort() -> None:
    words = ["dataset=synthetic", "partition=natural", "data.new=5", "train.participation=0.11"]
    config = compose([*words, "train.epochs=1"])
    assert cost.partition_size(config)[1:3] == (30, 25)
    # Two clients: 11% of 25 are 2.75
    assert cost.images_a_round(config) == round(rows_of(config) * 2 / 30)


def test_ones_own_data_are_read_once_and_missing_ones_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("mine.csv").write_text("a,label\n" + "\n".join(f"{k},{k % 3}" for k in range(90)))
    words = ["dataset=csv", f"dataset.path={Path('mine.csv').absolute()}", "dataset.label=label", "partition=iid"]
    config = compose(words)
    assert rows_of(config) == round(90 * 0.75)
    Path("mine.csv").unlink()
    assert rows_of(compose([*words, "data.validation=0.5"])) == round(90 * 0.75 * 0.5)
    with pytest.raises(UserError, match=r"other\.csv"):
        cost.images_a_trial(compose(["dataset=csv", "dataset.path=other.csv", "dataset.label=label"]))


def records(path: str = "runs") -> list[dict]:
    return [json.loads(file.read_text()) for file in Path(path).glob("*/status.json")]


@pytest.mark.slow
def test_speeds_of_records_in_gradients() -> None:
    config = compose([*SMALL, "algorithm=ditto", "train.rounds=3", "train.participation=1.0"])
    run_trial(config)
    (status,) = records()
    speeds = cost.known_speeds(Path("runs"))
    rate, how = cost.speed(config, speeds)
    assert how == "its own runs"
    work = 2 * cost.images_a_trial(config) + cost.evaluation_gradients(config)
    assert rate == pytest.approx(work / status["seconds"]), "Ditto makes two passes"
    assert cost.speed(compose([*SMALL, "algorithm=fedavg"]), speeds) == (rate, "other methods' runs")
    again = compose([*SMALL, "algorithm=ditto", "algorithm.own_epochs=12"])
    assert cost.speed(again, speeds) == (rate, "its own runs"), "with other hyperparameters"
    for other in ("model.hidden=[17]", "train.batch=11", "train.precision=bf16", "privacy=dp_sgd"):
        assert cost.speed(compose([*SMALL, other]), speeds)[1] == "plain gradient steps", other
    assert cost.speed(compose(["dataset=cifar10"]), speeds)[1] == "plain gradient steps"


@pytest.mark.slow
def test_speeds_are_of_a_core_and_a_worker_has_its_share_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda of: set(range(8)), raising=False)
    run_trial(compose([*SMALL, "train.rounds=2", "train.workers=1", "train.threads=1"]))
    speeds = cost.known_speeds(Path("runs"))

    def rate(workers: int, *words: str) -> float:
        return cost.speed(compose([*SMALL, *words]), speeds, workers).rate

    one = rate(1, "train.workers=1", "train.threads=1")
    assert rate(1, "train.workers=1", "train.threads=3") == rate(1, "train.workers=3") == pytest.approx(3 * one)
    assert rate(2) == rate(2, "train.threads=1") == pytest.approx(4 * one)
    assert rate(3) == pytest.approx(2 * one)
    assert rate(16) == rate(16, "train.threads=3") == pytest.approx(one / 2), "two workers on a core"
    assert rate(1, "train.threads=64") == pytest.approx(8 * one)
    (file,) = Path("runs").glob("*/meta.json")
    meta = json.loads(file.read_text())
    assert meta["environment"]["cores"] == 1
    # Speeds by a record of two cores
    for device, slower in (("cpu", 2), ("cuda", 1)):
        meta["environment"] |= {"cores": 2, "device": device}
        file.write_text(json.dumps(meta))
        (found,) = {*cost.known_speeds(Path("runs")).values()}
        assert found == pytest.approx(max(speeds.values()) / slower)
    # The seconds of a trial that went on elsewhere are of no machine
    meta["sessions"] = [{"environment": meta["environment"] | {"device": "cpu"}}]
    file.write_text(json.dumps(meta))
    assert cost.known_speeds(Path("runs")) == {}


@pytest.mark.slow
def test_a_record_tells_what_cores_its_trial_had(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cores that a trial could use count: a small model takes one thread of each process alone."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda of: set(range(8)), raising=False)
    torch.set_num_threads(5)
    try:
        for words, workers, had in (
            (["seed=1"], 1, 5),
            (["seed=2", "train.workers=1"], 1, 5),
            (["seed=3", "train.workers=2"], 1, 2),
            (["seed=4"], 4, 2),
            (["seed=5", "train.workers=1"], 16, 0.5),
        ):
            config = compose([*SMALL, "train.rounds=1", *words])
            found = run_trial(config, sweep_workers=workers).record.meta["environment"]
            assert (found["threads"], found["cores"]) == (1, had)
    finally:
        torch.set_num_threads(1)


def test_points_cost_what_they_set(plan: Plan) -> None:
    config = compose([*SMALL, "algorithm=ditto", "train.epochs=2", "train.rounds=3"])
    grids = {"train.lr": [0.1, 0.2], "algorithm.own_epochs": [1, 6]}
    axes = {key: Axis(grid, None, False, "ours") for key, grid in grids.items()}
    points = [{key: value} for key, axis in axes.items() for value in axis.grid]
    tune = replace(plan.tune, split="test", seeds=2)
    plan = plan._replace(groups=[Group("", "ditto", config, axes, points, 4)], seeds=[0, 1, 2], tune=tune)
    images = cost.images_a_trial(config)
    assert [cost.gradients_of_slot(plan, slot) / images for slot in plan.slots] == [4, 4, 3, 8, 2, 2, 2]


def test_start_and_evaluation_are_added_to_training() -> None:
    config = compose([*SMALL, "train.rounds=10", "train.eval_every=2"])
    work = cost.gradients_of_trial(config) + cost.evaluation_gradients(config)
    assert cost.seconds([config] * 3, 100.0) == pytest.approx(3 * (work / 100 + cost.START))
    assert cost.seconds([], 100.0) == 0


@pytest.mark.parametrize(
    ("words", "models"),
    [
        ([], 2),
        (["algorithm=fedavg"], 1),
        (["algorithm=local"], 1),
        (["algorithm=fedavg", "metrics.trained=true"], 2),
        # Of 10 clients: the model of each on the rows of all, the global one on them once
        (["metrics.all=true"], 10 + 1),
        (["algorithm=fedavg", "metrics.all=true"], 1),
        (["metrics.all=true", "metrics.all_size=own"], 2 * 2),
        # Each on its own rows and those of ceil(9 / 2) others
        (["metrics.subset=0.5"], 2 * 6),
        (["metrics.subset=0.5", "metrics.subset_size=own", "metrics.all=true", "metrics.all_size=own"], 2 * 3),
        (["metrics.subset=1.0", "metrics.all=true", "metrics.all_size=own"], 2 * 10),
    ],
)
def test_evaluation_counts_the_rows_that_each_model_is_scored_on(words: list[str], models: int) -> None:
    """Digits have 1,797 rows; each row on which a model is scored costs a third of a gradient."""
    config = compose(
        [*SMALL, "algorithm=ditto", "partition.clients=10", "train.rounds=10", "train.eval_every=2", *words]
    )
    held = 1797 - rows_of(config)
    assert cost.evaluation_gradients(config) == pytest.approx(5 * models * held / 3)
    assert cost.evaluation_gradients(changed(config, {"metrics.rows": "train"})) == pytest.approx(
        5 * models * rows_of(config) / 3
    )


def test_a_private_step_is_timed_as_one() -> None:
    """The gradient of each image is clipped, which takes several times as long as their mean."""
    batch = ["train.batch=64", "model.hidden=[256]"]
    (private, _), (plain, _) = (cost.speed(compose([*batch, *words]), {}) for words in (["privacy=dp_sgd"], []))
    assert private is not None
    assert plain is not None
    assert private < plain / 1.5


def test_the_epochs_of_new_clients_are_counted_once() -> None:
    words = ["partition=iid", "partition.clients=10", "algorithm=apfl", "train.rounds=2", *SMALL]
    plain, new = compose(words), compose([*words, "data.new=5", "data.new_epochs=30"])
    rows = cost.partition_size(plain).rows
    fine_tuning = 5 / 10 * 30 * rows
    trained = cost.images_a_round(new) * 2
    assert cost.images_a_trial(new) == trained + fine_tuning
    assert cost.gradients_of_trial(new) == 2 * trained + fine_tuning, "APFL takes two gradients, fine-tuning one"
    assert cost.gradients_of_trial(plain) == 2 * cost.images_a_trial(plain)


def test_batches_are_not_larger_than_clients() -> None:
    words = ["partition=iid", "partition.clients=10", "train.steps=3", "train.batch=500"]
    estimate, images = trained(*words)
    assert estimate == pytest.approx(images, rel=0.01)


@pytest.mark.slow
def test_records_of_other_machines_unfinished_and_damaged_ones_say_nothing() -> None:
    config = compose([*SMALL, "train.rounds=2"])
    for seed in range(4):
        run_trial(compose([*SMALL, "train.rounds=2", f"seed={seed}"]))
    assert len(cost.known_speeds(Path("runs"))) == 2
    machine, unfinished, damaged, empty = Path("runs").glob("*/meta.json")
    meta = json.loads(machine.read_text())
    meta["environment"]["processor"] = "another"
    machine.write_text(json.dumps(meta))
    status = unfinished.with_name("status.json")
    status.write_text(status.read_text().replace("finished", "interrupted"))
    damaged.with_name("config.yaml").write_text("[")
    empty.write_text("{}")
    assert cost.speed(config, cost.known_speeds(Path("runs")))[1] == "plain gradient steps"
    assert cost.known_speeds(Path("nowhere")) == {}


@pytest.mark.parametrize("model", [["dataset=agnews"], ["dataset=office_home"], ["dataset=digits"]])
def test_a_step_is_timed_without_data(model: list[str]) -> None:
    config = compose(
        [*model, "train.batch=2", "data.root=/nowhere", *(["model.vocabulary=50"] * ("agnews" in model[0]))]
    )
    rate, how = cost.speed(config, {})
    assert rate is not None
    assert rate > 0
    assert how == "plain gradient steps"


@pytest.mark.slow
def test_the_page_of_a_table_needs_no_data_and_writes_nothing(
    capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PFLSWEEP_DATA", "/nowhere")
    assert main(["-m", "sweep=pgfed/table1", "only=[fedavg,pgfed]", "scale=small", "plan=true", "workers.count=2"]) == 0
    out = capsys.readouterr().out
    assert list(Path().iterdir()) == []
    groups, totals, words = out.split("\n\n")
    header, *lines = groups.splitlines()
    assert header.split() == [
        "method",
        "setting",
        "points",
        "trials",
        "trained",
        "rounds",
        "images",
        "a",
        "trial",
        "time",
    ]
    assert len(lines) == 12
    assert lines[1].split()[:7] == ["pgfed", "cifar10/clients25", "4", "6", "0", "27", "1,458,000"]
    assert totals.splitlines()[1].split()[:3] == ["cifar10/clients25", "2", "10"]
    assert len(totals.splitlines()) == 7
    assert (
        "pgfed/table1 at scale small: 60 trials, seeds 0, 1; 0 of them trained already; time for the other 60 on "
        in words
    )
    assert "plain gradient steps (12). Plain gradient steps are a lower bound" in words
    assert "Each trial's start counts as 1 s." in words
    assert "Dry run (plan=true): nothing was started." in words


@pytest.mark.slow
def test_the_page_after_trials_and_of_what_cannot_be_known(capsys: pytest.CaptureFixture) -> None:
    trial = [*SMALL, "train.rounds=2"]
    assert main(["-m", "algorithm=fedavg", *trial]) == 0
    (file,) = Path("runs").glob("*/status.json")
    status, rounds = json.loads(file.read_text()), pd.read_parquet(file.with_name("rounds.parquet"))
    assert status["seconds"] == pytest.approx((rounds["seconds"] + rounds["eval_seconds"]).sum())
    # As if on a machine of a known speed
    file.write_text(json.dumps({**status, "seconds": 1.5}))
    capsys.readouterr()
    before = files()
    assert main(["-m", "algorithm=fedavg,local", *trial, "train.rounds=2000", "plan=true"]) == 0
    out = capsys.readouterr().out
    assert "Speeds are those of its own runs (1), other methods' runs (1)." in out
    assert "lower bound" not in out
    assert files() == before
    times = {row.split()[0]: row.split()[-2:] for row in out.split("\n\n")[0].splitlines()}
    # With a thousand times as many rounds
    assert times["fedavg"] == times["local"] == ["25", "min"]
    if not cost_has_gpu():
        assert main(["-m", "algorithm=fedavg", *trial, "device=cuda", "plan=true"]) == 0
        said = "1 worker: unknown.\nThe time of 1 row is unknown: device is 'cuda', but PyTorch sees no GPU"
        assert said in capsys.readouterr().out


def files() -> list[Path]:
    """Return the files of a folder without those of SQLite beside a database, which go when the connection is
    collected.
    """
    return sorted(file for file in Path().rglob("*") if not file.name.endswith(("-shm", "-wal")))


def cost_has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


def test_durations() -> None:
    said = [duration(seconds) for seconds in (0, 99, 100, 5999, 6000, 71.9 * 3600, 72 * 3600, 1e6)]
    assert said == ["0 s", "99 s", "2 min", "100 min", "1.7 h", "71.9 h", "3.0 days", "11.6 days"]
