"""What a trial costs, known before it runs: training images, and seconds by measured speed."""

from pathlib import Path
from typing import Any, NamedTuple

from pflsweep.compose import Config
from pflsweep.errors import UserError
from pflsweep.sweep.plan import changed


class Size(NamedTuple):
    """A dataset's published numbers, so that a plan needs no data."""

    train: int
    test: int
    shape: tuple[int, ...]  # of a row
    classes: int


SIZES = {
    "digits": Size(1347, 450, (1, 8, 8), 10),
    "mnist": Size(60_000, 10_000, (1, 28, 28), 10),
    "fmnist": Size(60_000, 10_000, (1, 28, 28), 10),
    "cifar10": Size(50_000, 10_000, (3, 32, 32), 10),
    "cifar100": Size(50_000, 10_000, (3, 32, 32), 100),
    "tiny_imagenet": Size(100_000, 10_000, (3, 64, 64), 200),
    "agnews": Size(120_000, 7_600, (200,), 4),
    "agnews_subset": Size(18_055, 7_600, (200,), 4),
    "organamnist": Size(41_052, 17_778, (1, 28, 28), 11),
    "office_home": Size(15_588, 0, (3, 32, 32), 65),
}


def images_a_round(config: Config) -> int:
    """Training images of one round, on average: all clients' training rows, the cohort's share of them, each epoch."""
    values = config.values
    train, partition = values["train"], values["partition"]
    rows = training_rows(config)
    clients = partition.get("clients")
    cohort = train["participation"]
    if clients:
        trains = clients - values["data"]["new"]
        cohort = max(1, int(trains * train["participation"] + 1e-9)) / clients
    return round(rows * cohort * train["epochs"])


def training_rows(config: Config) -> int:
    """All clients' training rows together."""
    size, data = size_of(config), config.values["data"]
    train, test = size.train, size.test
    if config.values["dataset"].get("val") is False:  # Tiny-ImageNet without its validation images
        test = 0
    limit = data["limit"]
    if limit is not None and limit < train + test:
        train, test = round(limit * train / (train + test)), limit - round(limit * train / (train + test))
    share = config.values["partition"].get("test_fraction")
    rows = train if share is None else (train + test) * (1 - share)
    return round(rows * (1 - data["validation"]))


def size_of(config: Config) -> Size:
    """Raises UserError where the dataset is the user's own and cannot be read."""
    known = SIZES.get(config.choices["dataset"])
    if known is not None:
        return known
    from pflsweep.config import build_dataset

    dataset = build_dataset(config)
    return Size(dataset.train, len(dataset.y) - dataset.train, dataset.shape, dataset.classes)


def cut(config: Config, images: int) -> Config:
    """With as many rounds as so many training images allow, at least one."""
    train = config.values["train"]
    rounds = max(1, images // max(1, images_a_round(config)))
    if rounds >= train["rounds"]:
        return config
    return changed(config, {"train.rounds": rounds, "train.eval_every": min(train["eval_every"], rounds)})


def images(config: Config) -> int:
    """Training images of a whole trial."""
    return config.values["train"]["rounds"] * images_a_round(config)


Speeds = dict[tuple[str, ...], float]  # images/s by (method, model, dataset), and by the last two


def known_speeds(runs: Path) -> Speeds:
    """From the newest finished records."""
    import pandas as pd

    from pflsweep import disk

    found: Speeds = {}
    files = sorted(runs.glob("*/status.json"), key=lambda file: file.stat().st_mtime)[-500:] if runs.is_dir() else []
    for file in files:
        try:
            meta, status = disk.read_json(file.parent / "meta.json"), disk.read_json(file)
            if status["status"] != "finished" or not status["seconds"]:
                continue
            rounds = pd.read_parquet(file.parent / "rounds.parquet", columns=["images"])
        except (OSError, ValueError, KeyError):
            continue  # what is damaged there is said when it is read for a report
        speed = float(rounds["images"].sum()) / status["seconds"]
        for key in _keys(meta):
            found[key] = speed
    return found


def _keys(meta: dict[str, Any]) -> list[tuple[str, ...]]:
    where = (meta["model"], meta["dataset"])
    return [(meta["method"], *where), where]


def speed(config: Config, speeds: Speeds) -> tuple[float | None, str]:
    """(images/s with evaluation, how it is known). None where it cannot be known."""
    from pflsweep.setting import model_name

    choices = config.choices
    meta = {"method": choices["algorithm"], "model": model_name(config), "dataset": choices["dataset"]}
    for key, how in zip(_keys(meta), ("its own runs", "other methods' runs"), strict=True):
        if key in speeds:
            return speeds[key], how
    where = ("step", meta["model"], meta["dataset"], str(config.values["train"]["batch"]))
    if where not in speeds:
        try:
            speeds[where] = _step_speed(config)
        except UserError:
            return None, "unknown"
    return speeds[where], "a gradient step"


def _step_speed(config: Config) -> float:
    """Images/s of plain gradient steps, timed now on random rows."""
    from time import perf_counter

    import torch

    from pflsweep.config import build_model
    from pflsweep.engine.task import Batch, Task

    size, batch = size_of(config), config.values["train"]["batch"]
    model = build_model(config, size.shape, size.classes)
    task = Task(model)
    w = task.vector(model)
    generator = torch.Generator().manual_seed(0)
    words = config.values["model"].get("vocabulary")
    shape = (batch, *size.shape)
    x = torch.randint(words, shape, generator=generator) if words else torch.rand(shape, generator=generator)
    y = torch.randint(size.classes, (batch,), generator=generator)
    one = Batch(x, y, mask=None, live=None, key=torch.tensor(0))
    took = []
    for _ in range(3):  # the first is cold
        began = perf_counter()
        task.grad(w, one).sum().item()
        took.append(perf_counter() - began)
    return batch / min(took)
