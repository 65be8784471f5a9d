"""`pflsweep record export | import`: finished records and the ledgers of sweeps, carried between folders and machines.

What is exported is a folder of runs like any other: reports are made from it as it lies, with --runs.
"""

import argparse
from contextlib import suppress
from pathlib import Path
from typing import Any

from pflsweep import disk
from pflsweep.errors import Parser, UserError
from pflsweep.record import Record
from pflsweep.report.compare import finished
from pflsweep.report.paper.store import Ledger, ledgers
from pflsweep.report.select import Chosen, choose

STAYS = ("checkpoint.pt", "models.pt", "labels.png", "lock")  # large, made anew, or of this machine


def main(argv: list[str]) -> int:
    """Raises UserError on bad input."""
    options = _parser().parse_args(argv or ["--help"])
    return int(options.act(options))


def _export(options: argparse.Namespace) -> int:
    chosen = choose(options.runs, options.run)
    done = _require_done(chosen, "export", options.runs)
    print(_carry(done, [] if options.run else ledgers(options.runs), options.out, "exported to", "--out"))
    _name_left(chosen)
    return 0


def _import(options: argparse.Namespace) -> int:
    if not options.source.is_dir():
        raise UserError(f"There is no folder '{options.source}'. `pflsweep record export --out DIR` makes one.")
    chosen = choose(options.source, [])
    done = _require_done(chosen, "import", options.source)
    for record in done:
        if record.folder.name != record.meta["identity"]:
            raise UserError(
                f"{record.folder} is the record of {record.meta['identity']}: give the folder its name back."
            )
    print(_carry(done, ledgers(options.source), options.runs, "imported into", "--runs"))
    _name_left(chosen)
    if not options.no_tracking:
        _track([Record(options.runs / record.folder.name) for record in done], options.uri)
    return 0


def _require_done(chosen: Chosen, what: str, runs: Path) -> list[Record]:
    if not chosen.done:
        raise UserError(f"There is no finished run to {what} in '{runs}'.")
    return chosen.done


def _carry(records: list[Record], told: list[Ledger], out: Path, did: str, flag: str) -> str:
    """Copies what `out` lacks; a line about it. Raises UserError where it cannot be written to, or trains now."""
    lacking = [record for record in records if not _has(out / record.folder.name, record)]
    new = [record for record in lacking if _copy(record, out / record.folder.name, flag)]
    known = {ledger.id: ledger for ledger in ledgers(out)}
    joined = [ledger for ledger in told if _join(ledger, known.get(ledger.id), out, flag)]
    there = f", {len(records) - len(new)} there already" if len(new) < len(records) else ""
    return f"{len(new)} runs and {len(joined)} ledgers of sweeps {did} {out}{there}"


def _join(ledger: Ledger, known: Ledger | None, out: Path, flag: str) -> bool:
    """Whether it tells what the one of the same plan in `out` does not."""
    own = out / "sweeps" / ledger.path.name
    old, new = sorted((known or ledger, ledger), key=lambda each: each.written)
    groups = {key: _joined(old.groups.get(key, group), group) for key, group in new.groups.items()}
    if known is not None and groups == known.groups:
        return False
    content = {**disk.read_json(new.path), "groups": list(groups.values())}
    with disk.writing(out, flag):
        own.parent.mkdir(parents=True, exist_ok=True)
        disk.write_json(own, content)
    return True


def _joined(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """What two ledgers of one plan say of a group: as the one in whose search more points did not fail, then with more
    final trials, then the newer; with the final trials of the other where those are of the same winner.
    """

    def tells(group: dict[str, Any]) -> tuple[int, int]:
        return group["points_settled"] - len(group["failed_points"]), len(group["trials"])

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


def _copy(record: Record, folder: Path, flag: str) -> bool:
    """Whether it was needed. meta.json comes last, so that half a record is none. A checkpoint there stays where more
    rounds can follow it. Raises UserError, Busy where it is being trained.
    """
    files = [file for file in record.folder.iterdir() if file.name not in STAYS and file.name[0] != "."]
    with disk.claimed(folder, flag):
        needed = not _has(folder, record)  # it may have been trained meanwhile
        if needed:
            content = {file.name: _read(file) for file in sorted(files, key=lambda file: file.name == "meta.json")}
            with disk.writing(folder, flag):
                disk.replace_all(folder, content)
                _drop_what_does_not_fit(Record(folder))
        (folder / "lock").unlink()
    return needed


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise UserError(f"{file} cannot be read ({error.strerror}).") from error


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


def _name_left(chosen: Chosen) -> None:
    left = [f"{record.meta['name']} ({record.status['status']})" for record in chosen.left]
    for line in [*left, *chosen.damaged]:
        print(f"left out: {line}")


def _track(records: list[Record], uri: str | None) -> None:
    """Feed MLflow what it lacks."""
    from tqdm import tqdm

    from pflsweep.compose import conf_dir, read_option
    from pflsweep.tracking import send

    options = read_option(conf_dir() / "tracking" / "mlflow.yaml")
    for record in tqdm(records, desc="to MLflow", unit="run", disable=None):
        experiment = record.config["tracking"].get("experiment", options["experiment"])
        send({"tracking": {**options, "uri": uri, "experiment": experiment}}, record)


def _parser() -> argparse.ArgumentParser:
    parser = Parser(prog="pflsweep record", description="Carry finished records, and what sweeps say of them.")
    words = parser.add_subparsers(required=True, metavar="WHAT", help="export | import")
    out = words.add_parser("export", description="Copy finished runs, without checkpoints and models.")
    out.add_argument("run", nargs="*", metavar="RUN", help="as in `pflsweep report runs`; default: all, with ledgers")
    out.add_argument("--out", type=Path, required=True, metavar="DIR", help="where to; a folder of runs")
    out.set_defaults(act=_export)
    into = words.add_parser("import", description="Take in exported runs: they are known as trained, and in MLflow.")
    into.add_argument("source", type=Path, metavar="DIR", help="what was exported")
    into.add_argument("--uri", metavar="URI", help="of MLflow (sqlite:///mlflow.db)")
    into.add_argument("--no-tracking", action="store_true", help="do not tell MLflow")
    into.set_defaults(act=_import)
    for each in (out, into):
        each.add_argument("--runs", type=Path, default=Path("runs"), metavar="DIR", help="where records are (runs)")
    return parser
