"""List the files of a record's folder. Whatever copies, checks or removes files of records uses this list."""

from dataclasses import dataclass, field
from typing import Literal

FORMAT = 1  # version of the layout of records and ledgers; `pflsweep record migrate` updates older ones


@dataclass(frozen=True)
class Part:
    """One file of a record.

    holds: one line about the content.
    written: "begin": before training, so every record has the file; "round": with the rounds, so every record of at
        least one round has it; "some": only records of trials to which it applies have it.
    copied: whether the file is copied with a record to another folder. Files that are large or can be computed again
        are not.
    columns: the columns that a table with rows must have.
    keys: the keys that a JSON file must have, with the type of each.
    """

    holds: str
    written: Literal["begin", "round", "some"]
    copied: bool = True
    columns: tuple[str, ...] = ()
    keys: dict[str, type] = field(default_factory=dict)


CHECKPOINT, MODELS = "checkpoint.pt", "models.pt"
# Files are copied in this order. meta.json comes last, so that an interrupted copy does not count as a record.
PARTS = {
    "rounds.parquet": Part(
        "one row per round: scores, times, traffic", "round", columns=("round", "seconds", "eval_seconds")
    ),
    "clients.parquet": Part(
        "one row per client, view, target and evaluated round",
        "round",
        columns=("round", "view", "client", "n", "correct"),
    ),
    "ends_rounds.parquet": Part(
        "rows of rounds at which the trial once ended and that its longer schedule does not evaluate",
        "some",
        columns=("round",),
    ),
    "ends_clients.parquet": Part(
        "the clients' scores in these rounds", "some", columns=("round", "view", "client", "n", "correct")
    ),
    "newcomers.parquet": Part(
        "one row per new client, by its number in the partition, and epoch of its fine-tuning",
        "some",
        columns=("epoch", "n", "correct", "round"),
    ),
    "study.parquet": Part("what the trial's study has seen", "some"),
    "partition.parquet": Part("one row per client and class: counts of samples", "begin", columns=("client",)),
    "matrices.npz": Part("the method's own matrices, such as weights between clients", "some"),
    CHECKPOINT: Part("the state that the next rounds begin from", "some", copied=False),
    MODELS: Part("the models after the last round", "some", copied=False),
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
COPIED = tuple(name for name, part in PARTS.items() if part.copied)
TABLES = tuple(name for name in PARTS if name.endswith(".parquet"))
# The lock file of the process that writes to the folder. It is valid on this machine alone and no part of the record.
LOCK = "lock"
