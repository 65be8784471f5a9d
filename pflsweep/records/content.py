"""What lies in a record's folder: one table of its files, from which all that copies, checks and removes them reads."""

from dataclasses import dataclass, field
from typing import Literal

FORMAT = 1  # of a record; `pflsweep record migrate` brings older ones up


@dataclass(frozen=True)
class Part:
    """One file of a record.

    holds: what is in it, in a line.
    written: "begin", before training, so every record has it; "round", with the rounds, so every record of at least one
        round has it; "some", in records of trials that have such a thing.
    carried: whether it is copied with a record to another folder. What is large or made anew stays.
    columns: those of a table that has rows.
    keys: those of a JSON file, with the type of each.
    """

    holds: str
    written: Literal["begin", "round", "some"]
    carried: bool = True
    columns: tuple[str, ...] = ()
    keys: dict[str, type] = field(default_factory=dict)


CHECKPOINT, MODELS = "checkpoint.pt", "models.pt"
# in the order in which they are copied: meta.json last, so that half a record is none
PARTS = {
    "rounds.parquet": Part(
        "one row a round: scores, times, traffic", "round", columns=("round", "seconds", "eval_seconds")
    ),
    "clients.parquet": Part(
        "one row a client, view, target and evaluated round",
        "round",
        columns=("round", "view", "client", "n", "correct"),
    ),
    "newcomers.parquet": Part(
        "one row a new client and epoch of its fine-tuning", "some", columns=("epoch", "n", "correct", "round")
    ),
    "study.parquet": Part("what the trial's study has seen", "some"),
    "partition.parquet": Part("one row a client and class: counts of samples", "begin", columns=("client",)),
    "matrices.npz": Part("the method's own matrices, such as weights between clients", "some"),
    CHECKPOINT: Part("the state that the next rounds begin from", "some", carried=False),
    MODELS: Part("the models after the last round", "some", carried=False),
    "status.json": Part("how far the trial has come", "begin", keys={"status": str, "rounds": int, "config": list}),
    "config.yaml": Part("the config", "begin"),
    "meta.json": Part(
        "what the trial is: identity, versions, environment, digests of code and data",
        "begin",
        keys={
            "identity": str,
            "name": str,
            "method": str,
            "seed": int,
            "created": str,
            "environment": dict,
            "neutral": list,
            "method_version": int,
            "plugin_versions": dict,
            "numerics": dict,
            "data_checksum": str,
            "digests": dict,
        },
    ),
}
CARRIED = tuple(name for name, part in PARTS.items() if part.carried)
TABLES = tuple(name for name in PARTS if name.endswith(".parquet"))
LOCK = "lock"  # in the folder while a process writes to it: of this machine, no part of the record
