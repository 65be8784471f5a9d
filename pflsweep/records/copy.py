"""Copy finished records and ledgers into a folder of runs or an archive, as far as it lacks them."""

import tempfile
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, NamedTuple

from pflsweep.records import archive
from pflsweep.records.checked import CheckedRecord, Contents, read_contents
from pflsweep.records.content import CHECKPOINT, COPIED, LOCK, MODELS
from pflsweep.records.ledger import Ledger, file_of, is_same_sweep, read_ledger
from pflsweep.records.record import Record
from pflsweep.records.select import choose, finished
from pflsweep.records.writer import RecordWriter
from pflsweep.util import files as util_files
from pflsweep.util.archive import pack
from pflsweep.util.errors import UserError


class Copied(NamedTuple):
    """The result of copying records and ledgers.

    records, ledgers: numbers of the copied ones.
    locked: folders of trials that another process was training or copying, whose records were not copied.
    """

    records: int
    ledgers: int
    locked: list[Path]


def copy_into_folder(contents: Contents, out: Path, flag: str) -> Copied:
    """Copy records and ledgers that a folder lacks into it.

    flag: the option that names the folder, for messages.
    """
    copied, locked = 0, []
    for each in contents.found:
        folder = out / each.record.place.name
        try:
            copied += not _has(folder, each.record) and _copy(each, folder, flag)
        except util_files.Locked:
            locked.append(folder)
    joined = [ledger for ledger, content in contents.ledgers if _merge_ledger(ledger, content, out, flag)]
    return Copied(copied, len(joined), locked)


def copy_into_archive(contents: Contents, out: Path, flag: str) -> Copied:
    """Add records and ledgers to an archive, which is created where it is missing.

    flag: the option that names the archive, for messages. Raises UserError if a file in the archive would be lost.
    """
    with tempfile.TemporaryDirectory() as folder, ExitStack() as held:
        with util_files.writing(out.parent, flag):
            out.parent.mkdir(parents=True, exist_ok=True)
            # Of two exports that read and replaced the archive at once, the second would lose what the first added
            held.enter_context(util_files.locked(out.parent))
        if out.exists():
            before = read_contents(choose(out, []), None, own=True, with_ledgers=True)
            if lost := [*before.left_out, *before.damaged]:
                raise UserError(
                    f"{out} is there and holds what would be lost: {lost[0].removesuffix('.')}. Move it away, or name "
                    f"another file: {flag}."
                )
            copy_into_folder(before, Path(folder), "TMPDIR")
        copied = copy_into_folder(contents, Path(folder), "TMPDIR")
        with util_files.writing(out.parent, flag):
            pack(Path(folder), out, archive.KNOWN)
    return copied


def _merge_ledger(ledger: Ledger, content: dict[str, Any], out: Path, flag: str) -> bool:
    """Merge a ledger of this content into `out`. Return True if anything changed."""
    folder = out / "sweeps"
    with util_files.writing(out, flag):
        folder.mkdir(parents=True, exist_ok=True)
        # A sweep that runs there writes the same file
        with util_files.locked(folder):
            own = folder / ledger.path.name
            known = read_ledger(own) if own.exists() else None
            if known is not None and not is_same_sweep((known.sweep, known.scale), (ledger.sweep, ledger.scale)):
                own = file_of(folder, ledger.id, ledger.reading, ledger.sweep, ledger.scale)
                known = read_ledger(own) if own.exists() else None
            old, new = sorted((known or ledger, ledger), key=lambda each: each.written)
            groups = {key: _merge_groups(old.groups.get(key, group), group) for key, group in new.groups.items()}
            if known is not None and groups == known.groups:
                return False
            content = content if new is ledger else util_files.read_json(new.path)
            util_files.write_json(own, {**content, "groups": list(groups.values())})
    return True


def _merge_groups(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """Merge two ledger groups of one plan.

    Keep the group with more points that have a result, then the one with more final trials, then the newer. Add the
    final trials of the other group where both have the same winner; of another winner they are superseded.
    """

    def results(group: dict[str, Any]) -> tuple[int, int]:
        return group["points_settled"] - len(group["without_result"]), len(group["trials"])

    less, more = sorted((old, new), key=results)
    gone = {*less["superseded"], *more["superseded"]}
    if less["winner"] != more["winner"]:
        gone |= {*less["trials"].values()}
        return {**more, "superseded": sorted(gone - {*more["trials"].values()})}
    trials = {**less["trials"], **more["trials"]}
    failed = {seed: why for seed, why in {**less["failed"], **more["failed"]}.items() if seed not in trials}
    return {**more, "trials": trials, "failed": failed, "superseded": sorted(gone - {*trials.values()})}


def _has(folder: Path, record: Record) -> bool:
    """Return whether a folder has at least as many rounds of this trial. A shorter or damaged record is replaced."""
    with suppress(UserError):
        other = Record(folder)
        return other.done > record.done or (other.done == record.done and finished(other))
    return False


def _copy(found: CheckedRecord, folder: Path, flag: str) -> bool:
    """Write a record into a folder that lacks it. Return False if it was trained there meanwhile.

    meta.json is written last, so that an interrupted copy is not a record. A checkpoint in the folder stays where the
    trial can be continued from it. Raises UserError; Locked where the trial is being trained.
    """
    with util_files.locked_folder(folder, flag):
        needed = not _has(folder, found.record)
        if needed:
            earlier = _earlier(folder, found.record.meta["identity"])
            files = found.files if earlier is None else _with_scores_of(earlier, found.files)
            with util_files.writing(folder, flag):
                util_files.replace_all(folder, files)
                if earlier is None:
                    # Files that not every record has may be what is damaged
                    for name in set(COPIED) - files.keys():
                        (folder / name).unlink(missing_ok=True)
                _drop_what_does_not_fit(RecordWriter(folder))
        (folder / LOCK).unlink()
    return needed


def _earlier(folder: Path, identity: str) -> Record | None:
    """Return the record of a trial in a folder; None if there is none, or none that can be read whole."""
    with suppress(UserError):
        record = Record(folder)
        record.verify()
        return record if record.meta["identity"] == identity else None
    return None


def _with_scores_of(earlier: Record, files: dict[str, bytes]) -> dict[str, bytes]:
    """Return the files of a record with the scores that it lacks of an earlier one of the same trial."""
    with tempfile.TemporaryDirectory() as staged, util_files.writing(Path(staged), "TMPDIR"):
        for name, content in files.items():
            Path(staged, name).write_bytes(content)
        RecordWriter(Path(staged)).keep_scores(earlier)
        return {name: Path(staged, name).read_bytes() for name in COPIED if Path(staged, name).exists()}


def _drop_what_does_not_fit(record: RecordWriter) -> None:
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
