"""The keys of a trial and of a sweep, a class for each group: meanings, allowed values and neutral values.

Defaults are in conf/. Methods, plug-ins and studies declare their keys in their classes in the same way. The keys of
models, datasets and partitions are the parameters of the functions that build them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache
from typing import Any, Self

from pflsweep.config.fields import SEEDS, Rule, hyper, rules_of

TUNE_SPLITS = ("validation", "test")
VIEW_NAMES = ("personal", "global", "trained")  # whose models are scored
FLOAT32 = 1e38  # factors of weights stay below it, since weights are float32 and would overflow


@dataclass(frozen=True, kw_only=True)
class Keys:
    """Base class of the keys of one group. An instance has the values of a checked config."""

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Self:
        """Return the keys of a group. A missing key, as in older records, gets its neutral value."""
        known = {field.name: field.metadata["neutral"] for field in fields(cls)}
        found = {name: values.get(name, neutral) for name, neutral in known.items()}
        return cls(**{name: value for name, value in found.items() if value is not ...})


@dataclass(frozen=True, kw_only=True)
class TopLevel(Keys):
    """The keys that are in no group."""

    seed: int = hyper("seed of all draws: partition, initial model, cohorts, batches", low=0, high=SEEDS)
    device: str = hyper("where it trains; auto: the GPU where there is one", choices=("auto", "cpu", "cuda"))


@dataclass(frozen=True, kw_only=True)
class Data(Keys):
    """Folder of the data, and the rows of them that are used."""

    root: str | None = hyper("folder of the datasets; null: PFLSWEEP_DATA, else the user's cache", empty=False)
    download: bool = hyper("whether missing files may be fetched")
    validation: float = hyper("share of each client's training rows that is held back to select on", low=0, below=1)
    limit: int | None = hyper("at most so many rows of the dataset, drawn: for a quick look", low=1, neutral=None)
    targets: str = hyper(
        "whose held-out rows a client has: its own, or by a permutation of all clients (FedFomo)",
        choices=("own", "permuted"),
        neutral="own",
    )
    shuffle: int = hyper("number of that permutation of clients", low=0, high=SEEDS, neutral=0)
    new: int = hyper(
        "random clients that never train; at the end they fine-tune the global model, or without one the initial model",
        low=0,
        neutral=0,
    )
    new_epochs: int = hyper("epochs in which new clients fine-tune that model", low=0, high=100_000, neutral=20)
    prescribed: str | None = hyper(
        "hash of the partition, cohorts or batches that pflsweep.run is given; set by it alone", neutral=None
    )


@dataclass(frozen=True, kw_only=True)
class Partition(Keys):
    """The key that every partition has. Its other keys are the parameters of its function."""

    seed: int | None = hyper(
        "seed of the partition; null: the trial's seed, so that each seed has a federation of its own",
        low=0,
        high=SEEDS,
        neutral=None,
    )


@dataclass(frozen=True, kw_only=True)
class Paths(Keys):
    """Folders to which files are written."""

    runs: str = hyper("folder of the records: a trial's is <runs>/<identity>", empty=False)


@dataclass(frozen=True, kw_only=True)
class Checkpoint(Keys):
    """When a trial saves checkpoints, and what it keeps at the end."""

    every: float = hyper("seconds between checkpoints; 0: after each round", low=0)
    keep: bool = hyper("whether the last checkpoint is kept when the trial is done, so that more rounds can follow")
    models: bool = hyper("whether the global and the personal models are saved at the end")


@dataclass(frozen=True, kw_only=True)
class Tracking(Keys):
    """The store to which runs are logged beside their records."""

    backend: str = hyper("what logs runs", choices=("mlflow", "none"), neutral="mlflow")
    uri: str | None = hyper(
        "an MLflow tracking URI; null: MLFLOW_TRACKING_URI, else sqlite:///mlflow.db here", neutral=None
    )
    experiment: str = hyper(
        "name of the MLflow experiment; MLFLOW_EXPERIMENT_NAME changes the default", neutral="pflsweep"
    )
    every: float = hyper("seconds between two batches of metrics, at least", low=0, neutral=5.0)
    required: bool = hyper(
        "whether a server that does not answer is an error before training; false: a warning, and runs are sent later",
        neutral=True,
    )


@dataclass(frozen=True, kw_only=True)
class Train(Keys):
    """How the federation trains."""

    rounds: int = hyper("rounds of communication", low=1, high=10_000_000)
    participation: float = hyper(
        "share of the clients in a round; their number is rounded down, at least 1", above=0, high=1
    )
    sampling: str = hyper(
        "how a round's clients are drawn: uniformly, by size, by Dirichlet probabilities, or as in the first round",
        choices=("uniform", "size", "dirichlet", "fixed"),
        neutral="uniform",
    )
    sampling_alpha: float = hyper("alpha of the Dirichlet probabilities", above=0, neutral=1.0)
    first_round: str = hyper(
        "clients that the first round trains: its cohort, or all", choices=("cohort", "all"), neutral="cohort"
    )
    weights: str = hyper(
        "aggregation weights: shares of the cohort's samples, or all alike", choices=("share", "uniform")
    )
    epochs: int = hyper("local epochs of a client's turn", low=1, high=100_000)
    steps: int | None = hyper(
        "local steps of a turn instead of epochs, also in each epoch of a method's own fine-tuning; new clients "
        "(data.new_epochs) still pass over their rows",
        low=1,
        high=10_000_000,
        neutral=None,
    )
    batch: int = hyper("samples in a batch", low=1)
    shuffle: str = hyper(
        "order of a client's rows: drawn anew in each epoch, drawn once (fixed batches), or as they are",
        choices=("epoch", "once", "never"),
        neutral="epoch",
    )
    last_batch: str = hyper(
        "an epoch's last batch where it is partial; a client that has no other keeps it",
        choices=("keep", "drop"),
        neutral="keep",
    )
    lr: float = hyper("learning rate of the first round", above=0, below=FLOAT32)
    lr_decay: float = hyper("factor of the learning rate from round to round", above=0, below=FLOAT32)
    lr_of: str = hyper(
        "a client's learning rate: this round's, or that of the round after its last turn (before its first: round 1)",
        choices=("round", "last_turn"),
        neutral="round",
    )
    momentum: float = hyper("momentum of local SGD", low=0, below=1)
    optimiser_state: str = hyper(
        "momentum with which a client's turn begins: zero, or that of its last turn",
        choices=("fresh", "kept"),
        neutral="fresh",
    )
    weight_decay: float = hyper("weight decay of local SGD", low=0, below=FLOAT32)
    eval_every: int = hyper("rounds between evaluations; the last round is always evaluated", low=1)
    eval_batch: int = hyper(
        "samples in a batch of evaluation, or of what is computed over all rows; batch norm is calibrated on four such "
        "batches",
        low=1,
    )
    precision: str = hyper(
        "precision of losses and gradients; weights are fp32. bf16: autocast; tf32: matrix products on an NVIDIA GPU",
        choices=("fp32", "tf32", "bf16"),
        neutral="fp32",
    )
    chunk: int | str = hyper(
        "clients that run at once; auto: 1 on a CPU, the whole cohort on a GPU", choices=("auto",), low=1
    )
    threads: int | str = hyper(
        "threads of the CPU; auto: 1 beside workers and for models under 250,000 parameters",
        choices=("auto",),
        low=1,
        high=1024,
    )
    workers: int | str = hyper(
        "processes of one thread that train clients at once, on a CPU; auto: as many as it has cores",
        choices=("auto",),
        low=1,
        high=1024,
    )


@dataclass(frozen=True, kw_only=True)
class Metrics(Keys):
    """Scores beside those of each client's personal model and the global one on the client's own rows.

    FedPG's tables call the accuracy on the rows `own` L-acc, on `subset` S-acc and on `all` G-acc. With an attack, too,
    these are the rows of all clients, so that numbers can be compared with those without attack.
    """

    subset: float = hyper("S-acc: share of the other clients whose rows join a client's own; 0: none", low=0, high=1)
    subset_size: str = hyper(
        "how many of the rows of S-acc: all, or as many as the client's own", choices=("union", "own")
    )
    all: bool = hyper("whether G-acc, on all clients' rows, is computed")
    all_size: str = hyper(
        "how many of the rows of G-acc: all, or as many as the client's own", choices=("union", "own"), neutral="union"
    )
    rows: str = hyper("rows that models are scored on", choices=("test", "train"), neutral="test")
    clients: str = hyper(
        "whose scores count: all, or those of clients that have had a turn", choices=("all", "trained"), neutral="all"
    )
    personal: str = hyper(
        "a client's own model: with the newest shared parts, or with those that its last turn began from",
        choices=("current", "stale"),
        neutral="current",
    )
    trained: bool = hyper(
        "whether models are scored as clients send them after local training, too (the view `trained`); "
        "of methods that send whole models"
    )


@dataclass(frozen=True, kw_only=True)
class Sweep(Keys):
    """The keys of a whole sweep (`-m`) that are in no group."""

    sweep: str | None = hyper("a sweep file, such as pgfed/table1, or the path of one of your own")
    only: list = hyper("rows and columns of that file to run; []: all", items=str)  # noqa: RUF009 (no default)
    scale: str | int = hyper("how much of the sweep: smoke, small, paper, your own scale, or a maximum of rounds")
    reading: str = hyper(
        "reading of a paper's table: paper, code (as its authors' code ran), or one change of the code", empty=False
    )
    plan: bool = hyper("whether to print the trials and what they cost, and run nothing")
    retry: bool = hyper("whether trials that failed before are trained again")


@dataclass(frozen=True, kw_only=True)
class Tune(Keys):
    """How hyperparameters are searched."""

    sampler: str = hyper("what proposes points", choices=("none", "grid", "random", "tpe", "cmaes", "hyperband"))
    points: int | None = hyper(
        "points of a search (random, tpe, cmaes: 20; hyperband: 17); null: all of a grid", low=1, high=100_000
    )
    split: str = hyper("data that points are scored on; test only where a paper did", choices=TUNE_SPLITS)
    validation: float = hyper(
        "share of each client's training rows that is held back; the winner is trained on all", above=0, below=1
    )
    view: str = hyper("whose accuracy counts", choices=VIEW_NAMES)
    round: str = hyper("which of a point's rounds counts; of final trials always the last", choices=("last", "best"))
    scale: str | int | None = hyper("scale of the points; null: that of final trials", neutral=None)
    seeds: int = hyper("number of seeds for each point (the first of the sweep's); their mean counts", low=1)
    prune: str = hyper("what stops a point that loses by its rounds' accuracy", choices=("none", "median", "halving"))
    seed: int = hyper("seed of the sampler, not of the trials", low=0, high=2**32 - 1)
    partial: bool = hyper("whether a winner is elected although points crashed or were killed", neutral=False)


@dataclass(frozen=True, kw_only=True)
class Workers(Keys):
    """How many processes train the trials of a sweep, and how they are started."""

    count: int = hyper("trials at once, each in a process of its own", low=1)
    stack: int = hyper("trials that each worker trains as one cohort, for GPUs", low=1)
    backend: str = hyper("how workers are started", choices=("processes", "dask"))
    address: str | None = hyper("address of the Dask scheduler", empty=False)
    storage: str | None = hyper(
        "database of the queue of trials; null: <runs>/sweeps/optuna.db; for many machines postgresql://...",
        empty=False,
    )
    heartbeat: int = hyper("seconds between heartbeats; a worker that misses five counts as dead", low=1)


KEY_GROUPS: dict[str, type[Keys]] = {
    "": TopLevel,
    "data": Data,
    "paths": Paths,
    "checkpoint": Checkpoint,
    "tracking": Tracking,
    "train": Train,
    "metrics": Metrics,
    "partition": Partition,
}


SWEEP_GROUPS: dict[str, type[Keys]] = {"": Sweep, "tune": Tune, "workers": Workers}


@cache
def rules() -> dict[str, Rule]:
    """Return the rule of each of the trainer's keys, by full key."""
    return _rules(KEY_GROUPS)


@cache
def sweep_rules() -> dict[str, Rule]:
    """Return the rule of each key of a sweep, by full key."""
    return _rules(SWEEP_GROUPS)


def _rules(groups: Mapping[str, type[Keys]]) -> dict[str, Rule]:
    """Return the rule of each key of some groups, by full key."""
    return {
        f"{group}.{name}".lstrip("."): rule for group, keys in groups.items() for name, rule in rules_of(keys).items()
    }


def neutral() -> dict[str, Any]:
    """Return the neutral value of each of the trainer's keys that has one, by full key."""
    return {key: rule.neutral for key, rule in rules().items() if rule.neutral is not ...}
