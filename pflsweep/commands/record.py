"""`pflsweep record export | import | migrate`: finished records and ledgers of sweeps, carried between folders and
machines, or brought up to date.

What is exported is a folder of runs like any other: reports are made from it as it lies, with --runs. What is carried
may be somebody else's: of each record the files that pflsweep knows, each a regular file of the record's own folder,
read once, and checked by its reader before it is written.
"""

import argparse
import json
import os
import re
import stat
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from pflsweep.records.ledger import Ledger, ledger_of, ledgers
from pflsweep.records.migrate import migrate
from pflsweep.records.record import CARRIED, STAYS, Record
from pflsweep.records.select import Chosen, choose, finished
from pflsweep.util import files as util_files
from pflsweep.util.errors import Parser, UserError

NAME = re.compile(r"[0-9a-f]{16}")  # of a record's folder, and of a ledger without .json
LARGEST = 2**30  # bytes of a file that is carried: many times the largest table of 1,000 clients over 1,000 rounds


class Found(NamedTuple):
    """A finished record as it is carried."""

    record: Record
    files: dict[str, bytes]  # meta.json last


def main(argv: list[str]) -> int:
    """Raises UserError on bad input."""
    options = _parser().parse_args(argv or ["--help"])
    return int(options.act(options))


def _export(options: argparse.Namespace) -> int:
    chosen = choose(options.runs, options.run)
    return _carried(chosen, options.runs, options.out, "export", "--out", with_ledgers=not options.run)


def _import(options: argparse.Namespace) -> int:
    if not options.source.is_dir():
        raise UserError(f"There is no folder '{options.source}'. `pflsweep record export --out DIR` makes one.")
    chosen = choose(options.source, [])
    tracked = None if options.no_tracking else options.uri or ""
    return _carried(chosen, options.source, options.runs, "import", "--runs", with_ledgers=True, tracked=tracked)


def _migrate(options: argparse.Namespace) -> int:
    done = migrate(options.runs)
    print(f"{done.records} records and {done.ledgers} ledgers of sweeps in {options.runs} brought up to date")
    for line in done.left:
        print(f"left as it is: {line}", file=sys.stderr)
    return 2 if done.left else 0


def _carried(
    chosen: Chosen, source: Path, out: Path, what: str, flag: str, *, with_ledgers: bool, tracked: str | None = None
) -> int:
    """Copy what `out` lacks and print what was copied and what was left out. tracked: MLflow's address that the records
    are sent to, "" for the default, None for nowhere. Return the exit code: 2 where something left out is damaged.

    Raises UserError where there is nothing to copy, or where `out` cannot be written to.
    """
    left = [f"{record.meta['name']} ({record.status['status']})" for record in chosen.left]
    damaged, found = list(chosen.damaged), list[Found]()
    for record in chosen.done:
        try:
            found.append(Found(record, _content(record, left, links=what == "export")))
        except UserError as error:
            damaged.append(str(error))
    if not found:
        why = "".join(f" Left out: {line}" for line in [*left, *damaged, *chosen.copies])
        raise UserError(f"There is no finished run to {what} in '{source}'.{why}")
    told = _ledgers(source, damaged) if with_ledgers else {}
    new = [each for each in found if not _has(out / each.record.folder.name, each.record)]
    new = [each for each in new if _copy(each, out / each.record.folder.name, flag)]
    known = {ledger.id: ledger for ledger in ledgers(out)}
    joined = [ledger for ledger, content in told.values() if _join(ledger, content, known.get(ledger.id), out, flag)]
    there = f", {len(found) - len(new)} there already" if len(new) < len(found) else ""
    did = {"export": "exported to", "import": "imported into"}[what]
    print(f"{len(new)} runs and {len(joined)} ledgers of sweeps {did} {out}{there}")
    for line in [*left, *chosen.copies]:
        print(f"left out: {line}")
    for line in damaged:
        print(f"left out: {line}", file=sys.stderr)
    if tracked is not None:
        _track([Record(out / each.record.folder.name) for each in found], tracked or None)
    return 2 if damaged else 0


def _content(record: Record, left: list[str], links: bool) -> dict[str, bytes]:
    """Return the files of a record, each read once and then checked as it was read. `left` gets the names of others.
    links: whether the folder, as one's own, may be a link.

    Raises UserError where a file is no regular one, is too large or damaged, or where the folder is another's.
    """
    folder, identity = record.folder, record.meta["identity"]
    if not NAME.fullmatch(identity):
        raise UserError(f"{folder / 'meta.json'}: identity {identity!r} is not 16 hexadecimal digits.")
    if folder.name != identity:
        raise UserError(f"{folder} is the record of {identity}: give the folder its name back.")
    try:
        # files are opened in this folder, since its name could be another's a moment later
        opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | (0 if links else os.O_NOFOLLOW))
    except OSError as error:
        raise UserError(f"{folder} is not read: it is a link, or no folder ({error.strerror}).") from error
    try:
        there = sorted(name for name in os.listdir(opened) if name not in STAYS and name[0] != ".")
        left += [f"{folder / name}, which is no file of a record" for name in there if name not in CARRIED]
        files = {name: _read(folder / name, opened) for name in CARRIED if name in there}
    finally:
        os.close(opened)
    with tempfile.TemporaryDirectory() as checked:
        copy = Path(checked, identity)
        copy.mkdir()
        with util_files.writing(Path(checked), "TMPDIR"):
            for name, content in files.items():
                (copy / name).write_bytes(content)
        try:
            Record(copy).verify()
        except UserError as error:  # it names the copy
            raise UserError(str(error).replace(str(copy), str(folder))) from error
    return files


def _read(file: Path, folder: int | None = None) -> bytes:
    """Return the bytes of a regular file. folder: opened, where the file is one of its entries. Raises UserError."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK  # of a pipe, nobody writes
    try:
        opened = os.open(file if folder is None else file.name, flags, dir_fd=folder)
        with open(opened, "rb") as content:
            found = os.fstat(opened)
            if not stat.S_ISREG(found.st_mode):
                raise UserError(f"{file} is not copied: it is no regular file.")
            if found.st_size > LARGEST:
                raise UserError(f"{file} is not copied: it has {found.st_size:,} bytes, and at most {LARGEST:,} are.")
            return content.read(LARGEST)
    except OSError as error:
        if file.is_symlink():
            raise UserError(f"{file} is not copied: it is a link. Put the file itself there.") from error
        raise UserError(f"{file} cannot be read ({error.strerror}).") from error


def _ledgers(runs: Path, damaged: list[str]) -> dict[Path, tuple[Ledger, dict[str, Any]]]:
    """Return the ledgers of a folder with their contents, oldest first. `damaged` gets what is none."""
    found = {}
    if (runs / "sweeps").is_symlink():
        damaged.append(f"{runs / 'sweeps'} is not read: it is a link. Put the folder itself there.")
        return {}
    for path in sorted((runs / "sweeps").glob("*.json")):
        try:
            ledger = ledger_of(path, content := _json(path))
            if ledger is None:  # a plan
                continue
            named = [identity for group in ledger.groups.values() for identity in group["trials"].values()]
            if not all(map(NAME.fullmatch, [path.stem, *named])):
                raise UserError(f"{path} is not copied: it and its trials are named by 16 hexadecimal digits each.")
            found[path] = ledger, content
        except UserError as error:
            damaged.append(str(error))
    return dict(sorted(found.items(), key=lambda each: each[1][0].written))


def _json(path: Path) -> dict[str, Any]:
    """Return a file's JSON object. Raises UserError."""
    try:
        content = json.loads(_read(path))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is no ledger of a sweep: it is no JSON ({type(error).__name__}).") from error
    if not isinstance(content, dict):
        raise UserError(f"{path} is no ledger of a sweep: it is no JSON object.")
    return content


def _join(ledger: Ledger, content: dict[str, Any], known: Ledger | None, out: Path, flag: str) -> bool:
    """Merge a ledger of this content into `out`. Return True if anything changed."""
    own = out / "sweeps" / ledger.path.name
    old, new = sorted((known or ledger, ledger), key=lambda each: each.written)
    groups = {key: _joined(old.groups.get(key, group), group) for key, group in new.groups.items()}
    if known is not None and groups == known.groups:
        return False
    content = {**(content if new is ledger else util_files.read_json(new.path)), "groups": list(groups.values())}
    with util_files.writing(out, flag):
        own.parent.mkdir(parents=True, exist_ok=True)
        util_files.write_json(own, content)
    return True


def _joined(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """Merge two ledger groups of one plan: keep the one with more points that have a result, then the one with more
    final trials, then the newer; add the final trials of the other where those are of the same winner.
    """

    def tells(group: dict[str, Any]) -> tuple[int, int]:
        return group["points_settled"] - len(group["without_result"]), len(group["trials"])

    less, more = sorted((old, new), key=tells)
    if less["winner"] != more["winner"]:
        return more
    trials = {**less["trials"], **more["trials"]}
    failed = {**less["failed"], **more["failed"]}
    return {**more, "trials": trials, "failed": {seed: why for seed, why in failed.items() if seed not in trials}}


def _has(folder: Path, record: Record) -> bool:
    """Whether a folder holds as much of this trial. What is damaged there, or shorter, is replaced."""
    with suppress(UserError):
        other = Record(folder)
        return other.done > record.done or (other.done == record.done and finished(other))
    return False


def _copy(found: Found, folder: Path, flag: str) -> bool:
    """Write a record into a folder that lacks it. Return False if it was trained there meanwhile. meta.json comes last,
    so that half a record is none. A checkpoint there stays where more rounds can follow it.

    Raises UserError, Locked where the trial is being trained.
    """
    with util_files.claimed(folder, flag):
        needed = not _has(folder, found.record)
        if needed:
            with util_files.writing(folder, flag):
                util_files.replace_all(folder, found.files)
                _drop_what_does_not_fit(Record(folder))
        (folder / "lock").unlink()
    return needed


def _drop_what_does_not_fit(record: Record) -> None:
    """A checkpoint of more rounds than the tables have now, or that cannot be read, and models of another round."""
    round = None
    with suppress(UserError):
        state = record.checkpoint()
        round = None if state is None else state["round"]
    if round is None or round > record.done:
        (record.folder / "checkpoint.pt").unlink(missing_ok=True)
    models = 0
    with suppress(UserError):
        models = record.models_round
    if models != record.done:
        (record.folder / "models.pt").unlink(missing_ok=True)


def _track(records: list[Record], uri: str | None) -> None:
    """Feed MLflow what it lacks."""
    from tqdm import tqdm

    from pflsweep.config.compose import conf_dir, read_option
    from pflsweep.tracking.run import send

    options = read_option(conf_dir() / "tracking" / "mlflow.yaml")
    for record in tqdm(records, desc="to MLflow", unit="run", disable=None):
        experiment = record.config["tracking"].get("experiment", options["experiment"])
        send({"tracking": {**options, "uri": uri, "experiment": experiment}}, record)


def _parser() -> argparse.ArgumentParser:
    parser = Parser(prog="pflsweep record", description="Carry finished records, and what sweeps say of them.")
    words = parser.add_subparsers(required=True, metavar="WHAT", help="export | import | migrate")
    out = words.add_parser("export", description="Copy finished runs, without checkpoints and models.")
    out.add_argument("run", nargs="*", metavar="RUN", help="as in `pflsweep report runs`; default: all, with ledgers")
    out.add_argument("--out", type=Path, required=True, metavar="DIR", help="where to; a folder of runs")
    out.set_defaults(act=_export)
    into = words.add_parser("import", description="Take in exported runs: they are known as trained, and in MLflow.")
    into.add_argument("source", type=Path, metavar="DIR", help="what was exported")
    into.add_argument("--uri", metavar="URI", help="of MLflow (sqlite:///mlflow.db)")
    into.add_argument("--no-tracking", action="store_true", help="do not tell MLflow")
    into.set_defaults(act=_import)
    bring = words.add_parser("migrate", description="Bring records of an older pflsweep up to date, in their folder.")
    bring.add_argument(
        "runs", type=Path, nargs="?", default=Path("runs"), metavar="DIR", help="a folder of runs (runs)"
    )
    bring.set_defaults(act=_migrate)
    for each in (out, into):
        each.add_argument("--runs", type=Path, default=Path("runs"), metavar="DIR", help="where records are (runs)")
    return parser
