"""`pflsweep record export | import | migrate`: copy finished records and ledgers, or bring them up to date.

An export is a folder of runs like any other, or one archive; reports can be made from it directly, with --runs. An
import may come from somebody else, so it is checked: only files that a record has are copied, each has to be a regular
file in the record's own folder, and it is read once and checked by its reader before it is written.
"""

import argparse
import json
import os
import re
import stat
import sys
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from pflsweep.records import archive
from pflsweep.records.content import CARRIED, CHECKPOINT, LOCK, MODELS, PARTS
from pflsweep.records.ledger import Ledger, ledger_of, ledgers, read_ledger
from pflsweep.records.migrate import migrate
from pflsweep.records.record import Record
from pflsweep.records.searches import trials_of
from pflsweep.records.select import Chosen, choose, finished
from pflsweep.util import files as util_files
from pflsweep.util.archive import LARGEST, ArchivePath, Folder, pack
from pflsweep.util.errors import Parser, UserError, nearest

NAME = re.compile(r"[0-9a-f]{16}")  # of a record's folder, and of a ledger without .json
NAMED = 10  # files of an archive that belong to no record: so many are listed


class Found(NamedTuple):
    """A finished record with the contents of the files to copy, meta.json last."""

    record: Record
    files: dict[str, bytes]


class Contents(NamedTuple):
    """Records and ledgers to copy, read and checked, and what is left out.

    ledgers: each with its file's content, oldest first.
    left: files that belong to no record, and runs that are not finished.
    damaged: an error message for each record or ledger that cannot be read.
    """

    found: list[Found]
    ledgers: list[tuple[Ledger, dict[str, Any]]]
    left: list[str]
    damaged: list[str]


def main(argv: list[str]) -> int:
    """Run a command and return its exit code. Raises UserError on bad input."""
    options = _parser().parse_args(argv or ["--help"])
    return int(options.act(options))


def _export(options: argparse.Namespace) -> int:
    """Copy finished runs to a folder or archive. Return 2 where damaged ones were left out, else 0."""
    if options.run and options.sweep:
        raise UserError("Name runs or a sweep to export, not both: a sweep's runs are known by its ledgers.")
    chosen = choose(options.runs, options.run)
    if options.sweep:
        chosen = _of_sweep(chosen, options.sweep, options.runs)
    contents = _contents(chosen, options.sweep, own=True, with_ledgers=not options.run)
    _require_any(contents, "export", options.runs)
    put = _pack if archive.is_archive(options.out) else _put
    return _tell(contents, put(contents, options.out, "--out"), f"exported to {options.out}")


def _of_sweep(chosen: Chosen, sweep: str, runs: Path) -> Chosen:
    """Return the runs of a sweep, with those of its search. Raises UserError where no ledger is of this sweep."""
    told = ledgers(*chosen.places)
    known = sorted({ledger.sweep for ledger in told})
    if sweep not in known:
        there = ", ".join(known) or "none"
        raise UserError(f"--sweep {sweep}: '{runs}' has no ledger of it.{nearest(sweep, known)} There are: {there}.")
    own = trials_of([ledger for ledger in told if ledger.sweep == sweep], chosen.records)
    return chosen._replace(records=[record for record in chosen.records if record.meta["identity"] in own])


def _import(options: argparse.Namespace) -> int:
    """Copy exported runs into a folder of runs and send them to MLflow. Return 2 where damaged ones were left out."""
    if not archive.exists(options.source):
        raise UserError(
            f"There is no folder or archive '{options.source}'. `pflsweep record export --out DIR` makes one."
        )
    for file in options.source.glob(f"*{archive.SUFFIX}"):
        if file.is_symlink():
            raise UserError(f"{file} is not read: it is a link. Put the file itself there.")
    contents = _contents(choose(options.source, []), None, own=False, with_ledgers=True)
    _require_any(contents, "import", options.source)
    code = _tell(contents, _put(contents, options.runs, "--runs"), f"imported into {options.runs}")
    if not options.no_tracking:
        _track([Record(options.runs / each.record.place.name) for each in contents.found], options.uri)
    return code


def _migrate(options: argparse.Namespace) -> int:
    """Bring a folder of runs up to date. Return 2 where a record could not be migrated, else 0."""
    done = migrate(options.runs)
    print(f"{done.records} records and {done.ledgers} ledgers of sweeps in {options.runs} brought up to date")
    for line in done.left:
        print(f"left as it is: {line}", file=sys.stderr)
    return 2 if done.left else 0


def _contents(chosen: Chosen, sweep: str | None, *, own: bool, with_ledgers: bool) -> Contents:
    """Read and check records and ledgers to copy.

    sweep: read the ledgers of this one alone. own: these are the user's own runs, whose folders may be links.
    """
    left = [f"{record.meta['name']} ({record.status['status']})" for record in chosen.left]
    damaged, found = list(chosen.damaged), list[Found]()
    for record in chosen.done:
        try:
            found.append(Found(record, _content(record, left, links=own)))
        except UserError as error:
            damaged.append(str(error))
    for place in chosen.places:
        if isinstance(place, ArchivePath):
            unknown = place.archive.unknown
            left += [f"{name!r} in {place}, which is no file of a record" for name in unknown[:NAMED]]
            left += [f"{len(unknown) - NAMED} more such files in {place}"] if len(unknown) > NAMED else []
    told = _ledgers(chosen.places, damaged) if with_ledgers else []
    told = [each for each in told if sweep is None or each[0].sweep == sweep]
    return Contents(found, told, [*left, *chosen.copies], damaged)


def _require_any(contents: Contents, what: str, source: Path) -> None:
    """Raise UserError where there is no finished run. what: the command."""
    if not contents.found:
        why = "".join(f" Left out: {line}" for line in [*contents.left, *contents.damaged])
        raise UserError(f"There is no finished run to {what} in '{source}'.{why}")


def _put(contents: Contents, out: Path, flag: str) -> tuple[int, int]:
    """Copy records and ledgers that a folder lacks into it. Return how many of each were copied.

    flag: the option that names the folder, for messages.
    """
    new = [each for each in contents.found if not _has(out / each.record.place.name, each.record)]
    new = [each for each in new if _copy(each, out / each.record.place.name, flag)]
    joined = [ledger for ledger, content in contents.ledgers if _join(ledger, content, out, flag)]
    return len(new), len(joined)


def _pack(contents: Contents, out: Path, flag: str) -> tuple[int, int]:
    """Add records and ledgers to an archive, or write a new one. Return how many of each were added, as `_put` does.

    Raises UserError where a file in the archive would be lost.
    """
    with tempfile.TemporaryDirectory() as folder:
        if out.exists():
            before = _contents(choose(out, []), None, own=True, with_ledgers=True)
            if lost := [*before.left, *before.damaged]:
                raise UserError(
                    f"{out} is there and holds what would be lost: {lost[0].removesuffix('.')}. Move it away, or name "
                    f"another file: {flag}."
                )
            _put(before, Path(folder), "TMPDIR")
        put = _put(contents, Path(folder), "TMPDIR")
        with util_files.writing(out.parent, flag):
            out.parent.mkdir(parents=True, exist_ok=True)
            pack(Path(folder), out, archive.KNOWN)
    return put


def _tell(contents: Contents, put: tuple[int, int], did: str) -> int:
    """Print what was copied and what was left out. Return the exit code: 2 where something is damaged, else 0.

    put: numbers of copied records and ledgers. did: the rest of the first line.
    """
    there = f", {len(contents.found) - put[0]} there already" if put[0] < len(contents.found) else ""
    print(f"{put[0]} runs and {put[1]} ledgers of sweeps {did}{there}")
    for line in contents.left:
        print(f"left out: {line}")
    for line in contents.damaged:
        print(f"left out: {line}", file=sys.stderr)
    return 2 if contents.damaged else 0


def _content(record: Record, left: list[str], links: bool) -> dict[str, bytes]:
    """Read the files of a record, each once, and check what was read.

    left: names of files that belong to no record are appended. links: whether the folder may be a link.

    Raises UserError where a file is not regular, too large or damaged, or where the folder has another record's name.
    """
    folder, identity = record.place, record.meta["identity"]
    if not NAME.fullmatch(identity):
        raise UserError(f"{folder / 'meta.json'}: identity {identity!r} is not 16 hexadecimal digits.")
    if folder.name != identity:
        raise UserError(f"{folder} is the record of {identity}: give the folder its name back.")
    files = _in_archive(folder) if isinstance(folder, ArchivePath) else _in_folder(folder, left, links)
    with tempfile.TemporaryDirectory() as checked:
        copy = Path(checked, identity)
        copy.mkdir()
        with util_files.writing(Path(checked), "TMPDIR"):
            for name, content in files.items():
                (copy / name).write_bytes(content)
        try:
            Record(copy).verify()
        except UserError as error:
            # The error names the copy, and the user has to know the original
            raise UserError(str(error).replace(str(copy), str(folder))) from error
    return files


def _in_folder(folder: Path, left: list[str], links: bool) -> dict[str, bytes]:
    """Return the files of a record in a folder. left, links: as for `_content`. Raises UserError."""
    try:
        # Files are opened relative to the opened folder, since its path could name another one a moment later
        opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | (0 if links else os.O_NOFOLLOW))
    except OSError as error:
        raise UserError(f"{folder} is not read: it is a link, or no folder ({error.strerror}).") from error
    try:
        there = sorted(name for name in os.listdir(opened) if name[0] != ".")
        left += [f"{folder / name}, which is no file of a record" for name in there if name not in (*PARTS, LOCK)]
        return {name: _read(folder / name, opened) for name in CARRIED if name in there}
    finally:
        os.close(opened)


def _in_archive(folder: ArchivePath) -> dict[str, bytes]:
    """Return the files of a record in an archive. Raises UserError where one is damaged."""
    try:
        return {name: (folder / name).read_bytes() for name in CARRIED if (folder / name).exists()}
    except OSError as error:
        raise UserError(f"{error}. Put the right archive there.") from error


def _read(file: Path, folder: int | None = None) -> bytes:
    """Return the bytes of a regular file. folder: descriptor of its folder, if that is opened. Raises UserError."""
    # O_NONBLOCK, since opening a pipe would wait for a writer
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
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


def _ledgers(places: Iterable[Folder], damaged: list[str]) -> list[tuple[Ledger, dict[str, Any]]]:
    """Return the ledgers of some places with their contents, oldest first. damaged: error messages are appended."""
    found = []
    for place in places:
        if isinstance(place, Path) and (place / "sweeps").is_symlink():
            damaged.append(f"{place / 'sweeps'} is not read: it is a link. Put the folder itself there.")
            continue
        paths: list[Folder] = sorted(place.glob("sweeps/*.json"), key=str)
        for path in paths:
            try:
                ledger = ledger_of(path, content := _json(path))
                # A plan for workers
                if ledger is None:
                    continue
                named = [identity for group in ledger.groups.values() for identity in group["trials"].values()]
                if not all(map(NAME.fullmatch, [ledger.id, *named])):
                    raise UserError(f"{path} is not copied: it and its trials are named by 16 hexadecimal digits each.")
                found.append((ledger, content))
            except UserError as error:
                damaged.append(str(error))
    return sorted(found, key=lambda each: each[0].written)


def _json(path: Folder) -> dict[str, Any]:
    """Read a JSON object. Raises UserError where the file is none."""
    try:
        content = json.loads(_read(path) if isinstance(path, Path) else path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path} is no ledger of a sweep: it is no JSON ({type(error).__name__}).") from error
    if not isinstance(content, dict):
        raise UserError(f"{path} is no ledger of a sweep: it is no JSON object.")
    return content


def _join(ledger: Ledger, content: dict[str, Any], out: Path, flag: str) -> bool:
    """Merge a ledger of this content into `out`. Return True if anything changed."""
    own = out / "sweeps" / ledger.path.name
    known = read_ledger(own) if own.exists() else None
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
    """Merge two ledger groups of one plan.

    Keep the group with more points that have a result, then the one with more final trials, then the newer. Add the
    final trials of the other group where both have the same winner.
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
    """Return whether a folder has at least as many rounds of this trial. A shorter or damaged record is replaced."""
    with suppress(UserError):
        other = Record(folder)
        return other.done > record.done or (other.done == record.done and finished(other))
    return False


def _copy(found: Found, folder: Path, flag: str) -> bool:
    """Write a record into a folder that lacks it. Return False if it was trained there meanwhile.

    meta.json is written last, so that an interrupted copy is no record. A checkpoint in the folder stays where the
    trial can be continued from it. Raises UserError; Locked where the trial is being trained.
    """
    with util_files.claimed(folder, flag):
        needed = not _has(folder, found.record)
        if needed:
            with util_files.writing(folder, flag):
                util_files.replace_all(folder, found.files)
                _drop_what_does_not_fit(Record(folder))
        (folder / LOCK).unlink()
    return needed


def _drop_what_does_not_fit(record: Record) -> None:
    """Remove a checkpoint that cannot be read or is ahead of the record's tables, and models of another round."""
    checkpoint = None
    with suppress(UserError):
        checkpoint = record.checkpoint()
    if checkpoint is None or checkpoint.round > record.done:
        record.remove(CHECKPOINT)
    models = 0
    with suppress(UserError):
        models = record.models_round
    if models != record.done:
        record.remove(MODELS)


def _track(records: list[Record], uri: str | None) -> None:
    """Send records to MLflow, as far as it lacks them. uri: of the store; None: as tracking is configured here."""
    from tqdm import tqdm

    from pflsweep.config.compose import compose
    from pflsweep.tracking.run import send

    # The tracking of a trial without any override
    options = compose([]).tracking
    for record in tqdm(records, desc="to MLflow", unit="run", disable=None):
        send(replace(options, uri=uri or options.uri, experiment=record.tracking.experiment), record)


def _parser() -> argparse.ArgumentParser:
    parser = Parser(prog="pflsweep record", description="Copy finished records and ledgers of sweeps.")
    words = parser.add_subparsers(required=True, metavar="WHAT", title="commands")
    about = "Copy finished runs, without checkpoints and models."
    out = words.add_parser("export", description=about, help=about)
    out.add_argument("run", nargs="*", metavar="RUN", help="as in `pflsweep report runs`; default: all, with ledgers")
    out.add_argument("--out", type=Path, required=True, metavar="DIR", help="where to; a folder of runs, or x.zip")
    out.add_argument("--sweep", metavar="NAME", help="runs and ledgers of this sweep alone, such as fedpg/table1")
    out.set_defaults(act=_export)
    about = "Copy exported runs into a folder of runs, where they count as trained, and send them to MLflow."
    into = words.add_parser("import", description=about, help=about)
    into.add_argument("source", type=Path, metavar="DIR", help="what was exported; a folder or x.zip")
    into.add_argument("--uri", metavar="URI", help="of MLflow (MLFLOW_TRACKING_URI, else sqlite:///mlflow.db)")
    into.add_argument("--no-tracking", action="store_true", help="do not send them to MLflow")
    into.set_defaults(act=_import)
    about = "Bring records of an older pflsweep up to date, in their folder."
    bring = words.add_parser("migrate", description=about, help=about)
    bring.add_argument(
        "runs", type=Path, nargs="?", default=Path("runs"), metavar="DIR", help="a folder of runs (runs)"
    )
    bring.set_defaults(act=_migrate)
    for each in (out, into):
        each.add_argument("--runs", type=Path, default=Path("runs"), metavar="DIR", help="where records are (runs)")
    return parser
