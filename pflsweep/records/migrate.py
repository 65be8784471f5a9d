"""Bring records and ledgers of an older format up to date, in their folder.

Format 0, whose files have no format number, hashed import paths into identities. A migrated record gets the identity
that the present code gives its config; `migrated_from` in meta.json keeps the old one.
"""

import hashlib
import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from pflsweep.config.identity import (
    NEUTRAL,
    RUNTIME,
    config_digest,
    effective,
    identity,
    is_shipped,
    shipped_options,
    without_neutral,
)
from pflsweep.config.keys import PLUGS, flat, under
from pflsweep.records.checkpoint import Checkpoint, read_torch, write_torch
from pflsweep.records.content import CHECKPOINT, COPIED, FORMAT, LOCK, MODELS, PARTS
from pflsweep.records.ledger import ledger_of
from pflsweep.records.readers import read_config
from pflsweep.records.record import Record, digest_of_config
from pflsweep.util import files as util_files
from pflsweep.util.errors import UserError, shortened

# Records of format 0 may lack these keys, which are younger: each with the value that such records were trained with
NEUTRAL_0: dict[str, Any] = {
    **{group: {} for group in ("privacy", "attack", "study")},
    "algorithm.idle": 0.0,
    "ala.idle": 0.0,
    "dataset.augment": "none",
    "data.limit": None,
    "data.targets": "own",
    "data.shuffle": 0,
    "data.new": 0,
    "data.new_epochs": 20,
    "train.sampling": "uniform",
    "train.sampling_alpha": 1.0,
    "train.optimiser_state": "fresh",
    "train.precision": "fp32",
    "train.compile": False,
}
STAGED = ".migrated"  # the folder in a record's new folder that holds its files until they are verified
Json = dict[str, Any]


class Migrated(NamedTuple):
    """The result of `migrate`: numbers of migrated records and ledgers."""

    records: int
    ledgers: int
    left: list[str]  # reasons, one for each record or ledger that stays as it is


def migrate(runs: Path) -> Migrated:
    """Bring all records and ledgers of a folder of runs up to date. A call that was killed is continued by the next.

    Records and ledgers that are damaged, and trials that are being trained, stay as they are. Raises UserError if the
    folder does not exist.
    """
    if not runs.is_dir():
        raise UserError(f"There is no folder of runs '{runs}' here.")
    util_files.require_readable(runs)
    records, ledgers, left = 0, 0, list[str]()
    for folder in _records(runs):
        try:
            if "format" not in _json(folder / "meta.json"):
                _migrate_record(folder)
                records += 1
        except UserError as error:
            left.append(str(error))
    known: dict[str, Json] = {}
    for folder in _records(runs):
        # A file that cannot be read is named already
        with suppress(UserError):
            meta = _json(folder / "meta.json")
            if "migrated_from" in meta:
                known[meta["migrated_from"]] = meta
    for file in sorted(runs.glob("sweeps/*.json")):
        try:
            ledgers += _migrate_ledger(file, known)
        except UserError as error:
            left.append(str(error))
    return Migrated(records, ledgers, left)


def _records(runs: Path) -> list[Path]:
    """Return the folders of records, sorted by name."""
    return sorted(file.parent for file in runs.glob("*/meta.json"))


def _json(file: Path) -> Json:
    """Read a JSON object. Raises UserError if the file is none."""
    try:
        return util_files.read_json(file)
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{file} cannot be read ({type(error).__name__}: {error}). Move it away first.") from error


def _migrate_record(folder: Path) -> None:
    """Write a record of format 0 into the folder of its new identity, then remove the old folder.

    Raises UserError if the record cannot be migrated; the old folder then stays as it is. A record that is already in
    the new folder stays where it has as many rounds, and is replaced where it has fewer.
    """
    with util_files.locked_folder(folder):
        with _not_migrated(folder):
            meta, config = _upgraded(_json(folder / "meta.json"), read_config(folder / "config.yaml"))
            new = folder.parent / meta["identity"]
        with util_files.locked_folder(new), util_files.writing(folder.parent):
            with _not_migrated(folder):
                has = _has(new, folder)
            if has:
                # Trained anew by the present version, or by a migration that was killed
                own = _json(new / "meta.json")
                if "migrated_from" not in own:
                    util_files.write_json(new / "meta.json", {**own, "migrated_from": meta["migrated_from"]})
            else:
                _write_verified(folder, new, meta, config)
            if folder.is_symlink():
                # What it points to is not in the folder of runs, and stays
                folder.unlink()
            else:
                shutil.rmtree(folder)


def _write_verified(folder: Path, new: Path, meta: Json, config: Json) -> None:
    """Write a record's files to a new folder, in place of what is there, once they are verified."""
    staged = new / STAGED
    # A process that was killed may have left it
    shutil.rmtree(staged, ignore_errors=True)
    try:
        with _not_migrated(folder):
            _write(folder, staged, meta, config)
            Record(staged).verify()
        for file in new.iterdir():
            if file not in (staged, new / LOCK):
                file.unlink()
        # meta.json comes last
        for name in PARTS:
            if (staged / name).exists():
                (staged / name).rename(new / name)
    except UserError as error:
        # The error names the copy, which goes; the user has to mend the old folder
        raise UserError(str(error).replace(str(staged), str(folder))) from error
    finally:
        shutil.rmtree(staged, ignore_errors=True)


@contextmanager
def _not_migrated(path: Path) -> Iterator[None]:
    """Turn any error of a damaged file into a UserError. path: the file, or the record's folder, for the message."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        # A full disk is said as such by `writing`
        if util_files.as_disk_full(error, path.parent):
            raise
        # The readers raise many different errors on files that are truncated or something else
        why = f"{type(error).__name__}: {shortened(error).removesuffix('.')}"
        raise UserError(f"{path} is not migrated: {why}. Put the right file back, or move it away.") from error


def _has(new: Path, folder: Path) -> bool:
    """Return whether a record in the new folder has at least as many rounds as that in the old one."""
    if not (new / "meta.json").exists():
        return False
    mine, other = (_json(each / "status.json") for each in (new, folder))
    return (mine["rounds"], mine["status"] == "finished") >= (other["rounds"], other["status"] == "finished")


def _write(folder: Path, new: Path, meta: Json, config: Json) -> None:
    """Write a record's files to a new folder. Files whose content does not change are copied."""
    new.mkdir()
    for name in COPIED:
        if (folder / name).exists() and name not in ("meta.json", "config.yaml", "status.json"):
            shutil.copyfile(folder / name, new / name)
    with _not_migrated(folder / "status.json"):
        status = util_files.read_json(folder / "status.json")
        ended = int(status["rounds"]) if status["status"] == "finished" else 0
    if (new / "newcomers.parquet").exists():
        with _not_migrated(folder / "newcomers.parquet"):
            table = pd.read_parquet(new / "newcomers.parquet")
            table = table if "round" in table else table.assign(round=ended)
            util_files.write_parquet(new / "newcomers.parquet", table)
    if (folder / CHECKPOINT).exists():
        with _not_migrated(folder / CHECKPOINT):
            _checkpoint(read_torch(folder / CHECKPOINT)["simulation"], meta["identity"]).write(new / CHECKPOINT)
    if (folder / MODELS).exists():
        with _not_migrated(folder / MODELS):
            write_torch(new / MODELS, {"round": ended, **read_torch(folder / MODELS)})
    util_files.write_yaml(new / "config.yaml", config)
    util_files.write_json(new / "status.json", {**status, "config": [digest_of_config(config)]})
    util_files.write_json(new / "meta.json", meta)


def _checkpoint(state: Json, identity: str) -> Checkpoint:
    """Convert a checkpoint of format 0. state: the simulation's, as that format has it.

    In format 0 the study's state is a part of the simulation's, `spent` (the account of private training) may be
    missing, and the rows of all clients are one block.
    """
    import torch

    study = state.pop("study", {})
    if "spent" not in state:
        nothing = torch.zeros(len(state["last"]), dtype=torch.int64)
        state["spent"] = [nothing, nothing.double(), nothing.clone()]
    for store in (state["clients"], state.get("optimisers", {})):
        store["rows"] = [blocks if isinstance(blocks, list) else [blocks] for blocks in store.get("rows", [])]
    return Checkpoint(identity, state, study)


def _upgraded(meta: Json, config: Json) -> tuple[Json, Json]:
    """Convert a record's meta.json and config to the present format. Raises ValueError if the record's identity is
    not the one of its content.
    """
    versions = {"algorithm": meta["method_version"], **meta.get("plugin_versions", {})}
    code = meta.get("code", [])
    resumable = _is_resumable(meta, config)
    chosen = {"algorithm": meta["method"], "model": meta["model"].partition(".")[0]}
    chosen |= {group: meta.get(group) or "none" for group in ("dataset", "partition", *PLUGS, "study")}
    new = {group: _with_options(node, chosen.get(group)) for group, node in config.items()}
    values = flat(new)
    kept = without_neutral(values, {**NEUTRAL, **NEUTRAL_0})
    digest = config_digest(kept, versions=versions, numerics={"engine": 1}, resumable=resumable, code=code)
    checksum = meta["data_checksum"]
    own = {"format": FORMAT, "identity": identity(digest, checksum), "config_digest": digest}
    added = {
        **dict.fromkeys((*PLUGS, "study"), "none"),
        "plugin_versions": {},
        "code": [],
        "digests": {},
        "malicious": [],
        "reconstruction": "",
        "environment": {},
    }
    rest = {
        "numerics": {"engine": 1},
        "neutral": sorted(values.keys() - kept.keys()),
        "migrated_from": meta["identity"],
    }
    return {**own, **{key: value for key, value in {**added, **meta, **rest}.items() if key not in own}}, new


def _is_resumable(meta: Json, config: Json) -> bool:
    """Return whether the trial can be continued by more rounds. Its identity shows it: format 0 hashed the number of
    rounds only where it cannot. Raises ValueError if the identity fits neither.
    """
    for resumable in (True, False):
        if _identity_0(meta, config, resumable) == meta["identity"]:
            return resumable
    raise ValueError("its identity is not the one of its config")


def _identity_0(meta: Json, config: Json, resumable: bool) -> str:
    """Compute a trial's identity by the rules of format 0."""
    runtime = (*RUNTIME, "train.rounds") if resumable else RUNTIME
    acting = without_neutral(effective(flat(config)), NEUTRAL_0)
    relevant = {key: value for key, value in acting.items() if not under(key, runtime)}
    plugins, code = meta.get("plugin_versions"), meta.get("code", [])
    content = [relevant, meta["data_checksum"], meta["method_version"], *([plugins] if plugins else []), *code]
    return hashlib.blake2b(json.dumps(content, sort_keys=True).encode(), digest_size=8).hexdigest()


def _with_options(node: Any, option: str | None) -> Any:
    """Return a node of a config with `_option_` in place of `_target_`. option: the node's own, where it is known."""
    if not isinstance(node, dict):
        return node
    named = {"_option_": _option(node["_target_"], option)} if "_target_" in node else {}
    return named | {key: _with_options(value, None) for key, value in node.items() if key != "_target_"}


def _option(target: str, option: str | None) -> str:
    """Return the option that an import path of format 0 belongs to. The path may be outdated: files have moved since.
    See identity.option_of.
    """
    if not target.startswith("pflsweep."):
        return target.rpartition(".")[2]
    if option and is_shipped(option):
        return option
    file = target.split(".")[-2]
    return next((n[0] for n in shipped_options().values() if file in n), file)


def _migrate_ledger(file: Path, known: Mapping[str, Json]) -> bool:
    """Convert a ledger of format 0 in its file. Return False if the file is not one.

    known: meta.json of each migrated record, by its old identity. Raises UserError if it cannot be converted.
    """
    content = _json(file)
    if "sweep" not in content or "format" in content:
        return False
    with _not_migrated(file):
        converted = _ledger(content, known)
        ledger_of(file, converted)
    with util_files.writing(file.parent):
        util_files.write_json(file, converted)
    return True


def _ledger(content: Json, known: Mapping[str, Json]) -> Json:
    """Convert a ledger to the present format. known: meta.json of each migrated record, by its old identity."""
    groups = [_group(group, known) for group in content["groups"]]
    written = {"tracking": {}, "written": 0.0, **content}
    return {"format": FORMAT, **written, "tune": {"partial": False, **content["tune"]}, "groups": groups}


def _group(group: Json, known: Mapping[str, Json]) -> Json:
    """Convert a group of a ledger. Its options are those of its first migrated final trial, where there is one."""
    finals = [known[old] for old in group["trials"].values() if old in known]
    chosen = {**finals[0], "algorithm": finals[0]["method"]} if finals else {}
    chosen["model"] = str(chosen.get("model", "")).partition(".")[0]
    named = {
        key.removesuffix("._target_"): _option(value, chosen.get(key.removesuffix("._target_")))
        for key, value in group["config"].items()
        if key.endswith("_target_")
    }
    values = named | {key: value for key, value in group["config"].items() if not key.endswith("_target_")}
    older = {"tried": [], "without_result": [], **group}
    return {
        **older,
        "config": effective(without_neutral(values, {**NEUTRAL, **NEUTRAL_0})),
        "trials": {seed: _new(old, known) for seed, old in group["trials"].items()},
        "superseded": [_new(old, known) for old in group.get("superseded", [])],
    }


def _new(old: str, known: Mapping[str, Json]) -> str:
    """Return the present identity of a trial. Without its record that is unknown, and the old one is kept."""
    return str(known[old]["identity"]) if old in known else old
