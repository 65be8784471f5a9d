"""Estimate what a trial costs before it runs: training images, and seconds by measured speed.

Images are counted as for FedAvg, whatever the method, so that a scale cuts all methods of a setting to the same number
of rounds. A method may compute more gradients (Ditto, with two models, twice as many) or fewer (FedFomo holds a fifth
of the images back): its `relative_gradients` says how many per image. Speeds are in gradients per second.
"""

import json
import math
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from pflsweep.config.compose import Config
from pflsweep.config.identity import method_name, option_of, shipped_options
from pflsweep.config.keys import under
from pflsweep.config.options import Train
from pflsweep.data.datasets import emnist
from pflsweep.data.participation import cohort_size
from pflsweep.records.readers import read_config
from pflsweep.sweep.plan import Plan, Slot, changed
from pflsweep.trial.build import build_dataset, build_federation, build_model, dp_sgd
from pflsweep.trial.device import device_of
from pflsweep.trial.metadata import model_name
from pflsweep.trial.process import cores, process_wide
from pflsweep.util import files as util_files
from pflsweep.util import processor, trace
from pflsweep.util.errors import UserError, one_line
from pflsweep.util.timing import shortest


class DatasetSize(NamedTuple):
    """The size of a dataset. Those of known datasets are stated here, so that planning needs no data."""

    train: int
    test: int
    shape: tuple[int, ...]  # of a row
    classes: int
    owners: int = 0  # natural clients; 0: none
    checksum: str = ""  # of a user's own data, which may change


SIZES = {
    "digits": DatasetSize(1438, 359, (1, 8, 8), 10),
    "mnist": DatasetSize(60_000, 10_000, (1, 28, 28), 10),
    "fmnist": DatasetSize(60_000, 10_000, (1, 28, 28), 10),
    "cifar10": DatasetSize(50_000, 10_000, (3, 32, 32), 10),
    "cifar100": DatasetSize(50_000, 10_000, (3, 32, 32), 100),
    "tiny_imagenet": DatasetSize(100_000, 10_000, (3, 64, 64), 200),
    "agnews": DatasetSize(120_000, 7_600, (200,), 4),
    "agnews_subset": DatasetSize(18_055, 7_600, (200,), 4),
    "svhn": DatasetSize(73_257, 26_032, (3, 32, 32), 10),
    "stl10": DatasetSize(5_000, 8_000, (3, 96, 96), 10),
    "cinic10": DatasetSize(180_000, 90_000, (3, 32, 32), 10),
    "emnist": DatasetSize(112_800, 18_800, (1, 28, 28), 47),
    "organamnist": DatasetSize(41_072, 17_778, (1, 28, 28), 11),
    "office_home": DatasetSize(15_588, 0, (3, 32, 32), 65, 4),
}
# Seconds that a trial takes beside its rounds: to read data, build the model and write the record. Measured on digits:
# 0.6 to 0.7 on a core of its own, 1.0 with three processes on two cores
START = 1.0
# A forward pass beside a gradient, which is a forward and a backward pass of about twice its cost
FORWARD = 1 / 3
PLAIN = "plain gradient steps"  # where a speed is from that includes nothing of a method's own
FROM_FILE = "pflsweep.data.partition.from_file.split"
_dataset_sizes: dict[str, DatasetSize] = {}  # cache: sizes of other datasets, which have to be read


class PartitionSize(NamedTuple):
    """The size of a partition: how many training rows and clients it makes of a dataset."""

    rows: int  # training rows of all clients together
    clients: int
    training_clients: int  # those of them that train
    checksum: str  # of the dataset, followed by that of the partition; "" for data that cannot change


_partition_sizes: dict[str, PartitionSize] = {}  # cache: sizes of a user's own partitions, which have to be made


def clear_caches() -> None:
    """Empty the caches: the user's own data may have changed since the last sweep of this process."""
    _dataset_sizes.clear()
    _partition_sizes.clear()


def images_a_round(config: Config, participation: float | None = None) -> int:
    """Return the mean number of training images in a round: the cohort's share of all training rows, times epochs.

    participation: None: as the config has it.
    """
    train, size = config.train, partition_size(config)
    cohort = train.participation if participation is None else participation
    share = cohort_size(size.training_clients, cohort) / size.clients
    # With train.steps each client takes the same number of batches, however many rows it has
    if train.steps is not None:
        return round(size.clients * share * train.steps * min(train.batch, size.rows / size.clients))
    return round(size.rows * share * train.epochs)


def partition_size(config: Config) -> PartitionSize:
    """Return the size of a config's partition.

    For a shipped partition its options tell, without data. A user's own partition, whose options may mean anything, and
    one in a file are made to find out.
    """
    partition = config.node("partition")
    if not partition.path.startswith("pflsweep.") or partition.path == FROM_FILE:
        groups = ("dataset", "partition", "data")
        key = json.dumps([config.seed, {key: value for key, value in config.flat.items() if under(key, groups)}])
        if key not in _partition_sizes:
            try:
                federation, _ = build_federation(config)
            except UserError:
                raise
            except Exception as error:  # a user's own code may fail in any way
                raise _failed(f"{partition} cannot cut the dataset", error) from error
            count = federation.clients
            _partition_sizes[key] = PartitionSize(int(federation.sizes.sum()), count, count, federation.checksum)
        return _partition_sizes[key]
    dataset = dataset_size(config)
    clients = partition.options.get("clients") or dataset.owners or 1
    training_clients = max(1, clients - config.data.new)
    return PartitionSize(_training_rows(config), clients, training_clients, dataset.checksum)


def _training_rows(config: Config) -> int:
    """Return the training rows of all clients together under a shipped partition."""
    size, limit = dataset_size(config), config.data.limit
    train, test = size.train, size.test
    # Tiny-ImageNet without its validation images
    if config.node("dataset").options.get("val") is False:
        test = 0
    if limit is not None and limit < train + test:
        train, test = round(limit * train / (train + test)), limit - round(limit * train / (train + test))
    options = config.node("partition").options
    share, clients = options.get("test_fraction"), options.get("clients")
    rows = train if share is None else (train + test) * (1 - share)
    if config.choices["partition"] == "natural" and clients and clients < size.owners:
        rows *= clients / size.owners
    return round(rows * (1 - config.data.validation))


def dataset_size(config: Config) -> DatasetSize:
    """Return the size of a config's dataset, which is read unless it is one of SIZES.

    Raises UserError if it cannot be read.
    """
    node = config.node("dataset")
    if node.option in SIZES:
        return _with_options(SIZES[node.option], node.options)
    column = config.node("partition").options.get("column")
    key = json.dumps([node.option, node.path, node.options, config.data.root, column])
    if key not in _dataset_sizes:
        dataset = build_dataset(config)
        test, shape = len(dataset.y) - dataset.train, dataset.shape
        _dataset_sizes[key] = DatasetSize(
            dataset.train, test, shape, dataset.classes, dataset.owner_count, dataset.checksum
        )
    return _dataset_sizes[key]


def _with_options(known: DatasetSize, options: dict[str, Any]) -> DatasetSize:
    """Return the size of a known dataset with the options that change it."""
    if "split" in options:  # EMNIST
        split = emnist.SPLITS.get(options["split"], emnist.SPLITS["balanced"])
        return known._replace(train=split.train, test=split.test, classes=split.classes)
    if "length" in options:  # text
        return known._replace(shape=(options["length"],))
    if "size" in options:  # images
        return known._replace(shape=(known.shape[0], options["size"], options["size"]))
    if "test_fraction" in options:
        rows = known.train + known.test
        test = round(rows * options["test_fraction"])
        return known._replace(train=rows - test, test=test)
    return known


def limit_images(config: Config, images: int) -> Config:
    """Return the config with as many rounds as `images` training images allow, at least one."""
    # Counted without train.steps, which would allow more rounds: methods of one table shall have the same
    a_round = images_a_round(config if config.train.steps is None else changed(config, {"train.steps": None}))
    return limit_rounds(config, max(1, images // max(1, a_round)))


def limit_rounds(config: Config, rounds: int) -> Config:
    """Return the config with at most `rounds` rounds, the last of which is evaluated."""
    if rounds >= config.train.rounds:
        return config
    # A divisor: a longer trial has the scores of the last round, too, and both share a record
    every = next(n for n in range(min(config.train.eval_every, rounds), 0, -1) if rounds % n == 0)
    return changed(config, {"train.rounds": rounds, "train.eval_every": every})


def images_a_trial(config: Config) -> int:
    """Return the training images of a whole trial: all rounds, and the epochs in which new clients fine-tune."""
    first = images_a_round(config, 1.0 if config.train.first_round == "all" else None)
    return first + (config.train.rounds - 1) * images_a_round(config) + images_of_new_clients(config)


def images_of_new_clients(config: Config) -> int:
    """Return the images on which new clients fine-tune, each of them with the rows of a mean client."""
    size = partition_size(config)
    return round(config.data.new * config.data.new_epochs * size.rows / size.clients)


def gradients_of_slot(plan: Plan, slot: Slot) -> float:
    """Return the gradients of single images that all trials of a slot compute. A point that is not known yet counts as
    the default values.
    """
    return sum(map(gradients_of_trial, plan.configs(slot, plan.known_point(slot) or {})))


def gradients_of_trial(config: Config) -> float:
    """Return the gradients of single images that a trial computes. New clients fine-tune by plain gradient steps."""
    new = images_of_new_clients(config)
    return (images_a_trial(config) - new) * relative_gradients(config) + new


def relative_gradients(config: Config) -> float:
    """Return how many gradients the method computes where FedAvg computes one, as the method states."""
    method, train, clients = config.node("algorithm"), config.train, partition_size(config).training_clients
    epochs, cohort = train.epochs if train.steps is None else 1, cohort_size(clients, train.participation)
    return float(method.load().relative_gradients(epochs, clients=clients, cohort=cohort, **method.options))


def seconds(configs: Iterable[Config], rate: float) -> float:
    """Return the seconds that trials take at a speed, with the start of each. rate: as `speed` returns it."""
    work = [gradients_of_trial(config) + evaluation_gradients(config) for config in configs]
    return sum(work) / rate + START * len(work)


def evaluation_gradients(config: Config) -> float:
    """Return what a trial's evaluation costs, in gradients of single images.

    Each client's own model and the global one are scored on the rows that nobody trains on, and on those of other
    clients where `metrics` asks for them. Where a partition leaves clients out these are too many, so that they are
    counted up to the number of training rows.
    """
    from pflsweep.methods.stock import no_global_model, personal_is_global

    metrics, size, partition = config.metrics, dataset_size(config), partition_size(config)
    clients = partition.training_clients
    total = min(size.train + size.test, config.data.limit or math.inf)
    held = min(max(total - partition.rows, 0), partition.rows)
    own = partition.rows if metrics.rows == "train" else held
    # Rows that are scored with the model of each client, all clients together
    others = math.ceil((clients - 1) * metrics.subset) if metrics.subset_size == "union" else bool(metrics.subset)
    each = own * min(1 + others + (metrics.all and metrics.all_size == "own"), clients)
    common = each  # with the global model
    if metrics.all and metrics.all_size == "union":
        # All clients are scored on the same rows, which the global model sees once
        each, common = own * clients, own
    method = config.node("algorithm").load()
    views = 0 if method.global_model is no_global_model else common
    views += (method.personal is not personal_is_global) * each + metrics.trained * each
    return FORWARD * math.ceil(config.train.rounds / config.train.eval_every) * views


NAMED = ("algorithm", "dataset", "partition")  # groups whose code is asked what a trial costs
Speeds = dict[tuple[str, ...], float]  # gradients of single images per second (CPU: per core), by `_speed_keys`


def known_speeds(runs: Path, configs: Iterable[Config] = ()) -> Speeds:
    """Return the speeds of the newest finished records whose code is shipped or named by `configs`.

    A record may come from somebody else, so other code that its config names is never imported.
    """
    found: Speeds = {}
    trusted = {name: path for path, names in shipped_options().items() for name in names}
    for node in (config.node(group) for config in configs for group in NAMED):
        trusted.setdefault(option_of(node.path), node.path)
    for file in _newest(runs.glob("*/status.json"), 500):
        try:
            meta, status = util_files.read_json(file.parent / "meta.json"), util_files.read_json(file)
            sessions = [each["environment"] for each in (meta, *meta.get("sessions", []))]
            stacked = any("stacked" in each for each in sessions)
            # The seconds are of all sessions together
            machines = {(each["device"], each["processor"], each.get("cores")) for each in sessions}
            if status["status"] != "finished" or not status["seconds"] or stacked or len(machines) > 1:
                continue
            values, where = read_config(file.parent / "config.yaml"), meta["environment"]
            for group in NAMED:
                values[group]["_target_"] = trusted[values[group].pop("_option_")]
            config = Config(values, {**meta, "algorithm": meta["method"]}, {}, {})
            share = where["cores"] if where["device"] == "cpu" else 1
            speed = (gradients_of_trial(config) + evaluation_gradients(config)) / status["seconds"] / share
            del values["model"]["_option_"]
            keys = _speed_keys(meta, where, config.train, values["model"])
        except (OSError, ValueError, KeyError, TypeError, AttributeError, ArithmeticError, yaml.YAMLError, UserError):
            # A report on these runs says what is damaged
            continue
        found |= dict.fromkeys(keys, speed)
    return found


def _newest(files: Iterable[Path], count: int) -> list[Path]:
    """Return the newest of some files, the newest last, without those that are removed meanwhile."""
    times: dict[Path, float] = {}
    for file in files:
        with suppress(OSError):
            times[file] = file.stat().st_mtime
    return sorted(times, key=times.__getitem__)[-count:]


def _speed_keys(
    choices: dict[str, Any], environment: dict[str, Any], train: Train, model: dict[str, Any]
) -> list[tuple[str, ...]]:
    """Return the keys under which a speed is known: with the method, then without. model: the model's options.

    DP-SGD takes the gradient of each image apart, so that its speed says nothing of other trials.
    """
    how = (json.dumps(model, sort_keys=True), str(train.batch), train.precision, choices.get("privacy") or "none")
    where = (environment["device"], environment["processor"], choices["model"], choices["dataset"], *how)
    return [(*where, method_name(choices)), where]


class Speed(NamedTuple):
    """The speed of a trial: gradients of single images per second, and where the number comes from."""

    rate: float
    source: str


def speed(config: Config, speeds: Speeds, workers: int = 1) -> Speed:
    """Return a trial's speed while `workers` workers share the machine.

    On a CPU it is taken to grow in proportion to the cores, since a cohort trains in as many processes. Raises
    UserError if it is unknown, as where the device or the dataset is not on this machine.
    """
    device = device_of(config.device)
    share = cores(config.train.workers, config.train.threads, workers) if device == "cpu" else 1
    choices = {**config.choices, "model": model_name(config)}
    where = {"device": device, "processor": processor.name()}
    keys = _speed_keys(choices, where, config.train, config.node("model").options)
    for key, source in zip(keys, ("its own runs", "other methods' runs"), strict=True):
        if key in speeds:
            return Speed(share * speeds[key], source)
    step = ("step", *keys[-1])
    if step not in speeds:
        speeds[step] = _step_speed(config, device)
    return Speed(share * speeds[step], PLAIN)


def _step_speed(config: Config, device: str) -> float:
    """Measure the speed of plain gradient steps on random rows, in images per second; on a CPU with one thread.

    Raises UserError if the model cannot be built or fails.
    """
    from time import perf_counter, thread_time

    import torch

    from pflsweep.methods.task import Batch, Private, Task

    size, batch = dataset_size(config), config.train.batch
    try:
        model = build_model(config, size.shape, size.classes).to(device)
    except Exception as error:  # a user's own model may fail in any way
        raise _failed(f"{config.node('model')} cannot be built", error) from error
    task = Task(model)
    w = task.vector(model)
    generator = torch.Generator().manual_seed(0)
    words = config.node("model").options.get("vocabulary")
    shape = (batch, *size.shape)
    x = torch.randint(words, shape, generator=generator) if words else torch.rand(shape, generator=generator)
    y = torch.randint(size.classes, (batch,), generator=generator)
    key = torch.tensor(0, device=device)
    one = Batch(x.to(device), y.to(device), mask=None, live=None, key=key)
    if (private := dp_sgd(config)) is not None:
        one = one._replace(private=Private(torch.tensor(float(batch), device=device), key, *private, []))
    # CPU time of the thread does not depend on what else the cores do
    clock = thread_time if device == "cpu" else perf_counter
    try:
        with process_wide(1, config.train.precision):
            return batch / shortest(lambda: task.grad(w, one).sum().item(), clock, least=0.2)
    except Exception as error:
        raise _failed(f"{config.node('model')} fails on a batch of random rows", error) from error


def _failed(what: str, error: Exception) -> UserError:
    """Return a UserError on what the user's own code does not do."""
    return UserError(f"{what}: {type(error).__name__}: {one_line(error)}{trace.line(error)}.")
