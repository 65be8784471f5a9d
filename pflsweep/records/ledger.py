"""Read the ledgers of sweeps: what was asked of each sweep, and which trials answer it."""

import hashlib
import re
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from pflsweep.config.options import TUNE_SPLITS
from pflsweep.config.reading import PAPER
from pflsweep.records.content import FORMAT
from pflsweep.records.errors import another_format
from pflsweep.util import files
from pflsweep.util.archive import Folder
from pflsweep.util.errors import UserError

# The required keys of each level of the file, with the type of each
OF_A_LEDGER = {
    "sweep": str, "scale": str, "command": str, "seeds": list, "tune": dict, "tracking": dict, "written": float | int,
}  # fmt: skip
OF_A_SEARCH = {"split": str, "view": str, "seeds": int, "validation": float | int}
OF_A_GROUP = {
    "setting": str, "method": str, "config": dict, "space": dict, "winner": dict | None, "points": int,
    "winner_value": float | int | None, "points_settled": int, "trials": dict, "failed": dict, "failed_points": list,
    "tried": list, "without_result": list, "superseded": list,
}  # fmt: skip


NAMELESS = "sweep"  # name of a sweep by a command without words


class Ledger(NamedTuple):
    """The file of a sweep: what was asked, and which trials answer it."""

    path: Folder
    written: float  # seconds since 1970
    sweep: str
    scale: str
    reading: str
    command: str
    seeds: list[int]
    tune: dict[str, Any]
    tracking: dict[str, Any]  # MLflow settings of its runs
    groups: dict[tuple[str, str], dict[str, Any]]  # by setting and method

    @property
    def id(self) -> str:
        """Return the id of the plan, which is the same for the same trials.

        The file name of a reading's ledger has the name of the reading after it.
        """
        return PurePosixPath(self.path.name).stem.partition("-")[0]


def is_same_sweep(plan: tuple[str, str], other: tuple[str, str]) -> bool:
    """Return whether two sweeps of the same trials are one, by the name and the scale of each.

    A command without a sweep file is called by its words, of which some change no trial, such as tracking=none.
    """
    return _title(*plan) == _title(*other)


def _title(sweep: str, scale: str) -> str:
    """Return the name and scale of a sweep as text, the same for all commands without a sweep file."""
    return f"{NAMELESS if '=' in sweep else sweep} {scale}"


def file_of(folder: Path, id: str, reading: str, sweep: str, scale: str) -> Path:
    """Return the file of a sweep's ledger in a folder `sweeps`.

    Its name has the reading, since one that changes no trial has the same plan id as the paper's. A sweep of another
    name or scale that has the same trials, and came first, keeps its file: then the name ends in a hash of both.
    """
    read = "" if reading == PAPER else f"-{reading}"
    file = folder / f"{id}{read}.json"
    try:
        other = files.read_json(file)
    except (OSError, ValueError):  # there is none, or one that cannot be read
        return file
    if is_same_sweep((str(other.get("sweep")), str(other.get("scale"))), (sweep, scale)):
        return file
    mark = hashlib.blake2b(_title(sweep, scale).encode(), digest_size=4).hexdigest()
    return folder / f"{id}{read}-{mark}.json"


def ledgers(*places: Folder) -> list[Ledger]:
    """Return all ledgers in folders of runs and in archives, oldest first. Raises UserError if one is damaged."""
    found = [read_ledger(path) for place in places for path in place.glob("sweeps/*.json")]
    return sorted(found, key=lambda ledger: (ledger.written, ledger.path.name))


def read_ledger(path: Folder) -> Ledger:
    """Read a ledger. Raises UserError if the file is damaged or something else."""
    try:
        content = files.read_json(path)
    except (OSError, ValueError, RecursionError) as error:
        raise _no_ledger(path, error) from error
    return ledger_of(path, content)


def ledger_of(path: Folder, content: dict[str, Any]) -> Ledger:
    """Build a ledger from a file's content. Raises UserError if it is something else."""
    if "sweep" not in content:
        raise _no_ledger(path, KeyError("sweep"))
    if content.get("format") != FORMAT:
        raise another_format(path, content.get("format"), path.parent.parent)
    try:
        _require_kinds(content, {**OF_A_LEDGER, "groups": list})
        own, listed = {key: content[key] for key in OF_A_LEDGER}, content["groups"]
        # Ledgers from before there were readings are of the paper's
        reading = content.get("reading", PAPER)
        _require(reading, str, "reading")
        for seed in own["seeds"]:
            _require(seed, int, "seeds")
        for group in listed:
            _require_kinds(group, OF_A_GROUP)
            _require(search_config(group), dict, "search_config")
            for key, axis in group["space"].items():
                _require(axis, list, key)
            for each in group["tried"]:
                _require_kinds(each, {"point": dict, "value": float | int})
        searched = any(group["points"] for group in listed)
        _require_kinds(own["tune"], {k: kind for k, kind in OF_A_SEARCH.items() if searched or k in own["tune"]})
        if own["tune"].get("split", "test") not in TUNE_SPLITS:
            raise ValueError(f"split is {own['tune']['split']!r}")
        for identity in (identity for group in listed for identity in group["trials"].values()):
            # An identity becomes the name of a folder
            if not re.fullmatch("[0-9a-z]+", identity):
                raise ValueError(f"'{identity}' names no trial")
        return Ledger(
            path, reading=reading, groups={(group["setting"], group["method"]): group for group in listed}, **own
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _no_ledger(path, error) from error


def _require_kinds(content: dict[str, Any], kinds: dict[str, Any]) -> None:
    """Raise KeyError if a key of JSON content is missing, TypeError where its value is of another type."""
    for key, kind in kinds.items():
        _require(content[key], kind, key)


def _require(value: Any, kind: Any, name: str) -> None:
    """Raise TypeError if a value of JSON content is of another type."""
    if not isinstance(value, kind):
        raise TypeError(f"{name} is {value!r}")


def _no_ledger(path: Folder, error: Exception) -> UserError:
    """Return the error to raise where a file is not a ledger."""
    return UserError(
        f"{path} is not a ledger of a sweep: {type(error).__name__}: {error}. "
        "Move it away; the sweep's command writes its ledger anew and trains nothing twice."
    )


def search_config(group: dict[str, Any]) -> dict[str, Any]:
    """Return the config of the search trials of a ledger's group. With `tune.scale` it differs from that of the final
    trials.
    """
    found: dict[str, Any] = group.get("search_config", group["config"])
    return found
