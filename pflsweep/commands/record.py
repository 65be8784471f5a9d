"""`pflsweep record export | import | migrate`: copy finished records and ledgers, or bring them up to date.

An export is a folder of runs like any other, or one archive; reports can be made from it directly, with --runs.
"""

import argparse
import sys
import time
from dataclasses import replace
from pathlib import Path

from pflsweep.commands.parser import Parser
from pflsweep.config.options import Tracking
from pflsweep.records import archive
from pflsweep.records.checked import Contents, read_contents
from pflsweep.records.copy import Copied, copy_into_archive, copy_into_folder
from pflsweep.records.ledger import ledgers
from pflsweep.records.migrate import migrate
from pflsweep.records.record import Record
from pflsweep.records.searches import find_searches, trials_of
from pflsweep.records.select import Chosen, choose
from pflsweep.util.errors import UserError, counted, nearest

EVERY = 10.0  # seconds between lines about an import's progress in a log


def main(argv: list[str]) -> int:
    """Run a command and return its exit code. Raises UserError on bad input."""
    options = _parser().parse_args(argv or ["--help"])
    return int(options.act(options))


def _export(options: argparse.Namespace) -> int:
    """Copy finished runs to a folder or archive. Return 2 where some were left out, else 0."""
    if options.run and options.sweep:
        raise UserError("Name runs or a sweep to export, not both: a sweep's runs are known by its ledgers.")
    chosen = choose(options.runs, options.run)
    if options.sweep:
        chosen = _of_sweep(chosen, options.sweep, options.runs)
    contents = read_contents(chosen, options.sweep, own=True, with_ledgers=not options.run)
    _require_any(contents, "export", options.runs)
    copy = copy_into_archive if archive.is_archive(options.out) else copy_into_folder
    return _print_outcome(contents, copy(contents, options.out, "--out"), f"exported to {options.out}")


def _of_sweep(chosen: Chosen, sweep: str, runs: Path) -> Chosen:
    """Return the runs of a sweep, with those of its search. Raises UserError if no ledger is of this sweep."""
    every = ledgers(*chosen.places)
    known = sorted({ledger.sweep for ledger in every})
    if sweep not in known:
        there = ", ".join(known) or "none"
        raise UserError(f"--sweep {sweep}: '{runs}' has no ledger of it.{nearest(sweep, known)} There are: {there}.")
    own = trials_of([ledger for ledger in every if ledger.sweep == sweep], chosen.records)
    return chosen._replace(records=[record for record in chosen.records if record.meta["identity"] in own])


def _import(options: argparse.Namespace) -> int:
    """Copy exported runs into a folder of runs and send them to MLflow. Return 2 where some were left out."""
    if not archive.exists(options.source):
        raise UserError(
            f"There is no folder or archive '{options.source}'. `pflsweep record export --out DIR` makes one."
        )
    for file in options.source.glob(f"*{archive.SUFFIX}"):
        if file.is_symlink():
            raise UserError(f"{file} is not read: it is a link. Put the file itself there.")
    contents = read_contents(choose(options.source, []), None, own=False, with_ledgers=True)
    _require_any(contents, "import", options.source)
    did = f"imported into {options.runs}"
    if options.no_tracking:
        return _print_outcome(contents, copy_into_folder(contents, options.runs, "--runs"), did)
    from pflsweep.tracking.failures import OF_IMPORT, with_advice

    with with_advice(OF_IMPORT):
        # Before anything is copied
        tracking = _reached([each.record for each in contents.found], options.uri)
        copied = copy_into_folder(contents, options.runs, "--runs")
        code = _print_outcome(contents, copied, did)
        folders = [options.runs / each.record.place.name for each in contents.found]
        _track([Record(folder) for folder in folders if folder not in copied.locked], tracking)
    return code


def _migrate(options: argparse.Namespace) -> int:
    """Bring a folder of runs up to date. Return 2 where a record could not be migrated, else 0."""
    done = migrate(options.runs)
    found = f"{counted(done.records, 'record')} and {counted(done.ledgers, 'ledger')} of sweeps"
    print(f"{found} in {options.runs} brought up to date")
    for line in done.left:
        print(f"left as it is: {line}", file=sys.stderr)
    return 2 if done.left else 0


def _require_any(contents: Contents, what: str, source: Path) -> None:
    """Raise UserError if there is no finished run. what: the command."""
    if not contents.found:
        why = "".join(f" Left out: {line}" for line in [*contents.left_out, *contents.damaged])
        raise UserError(f"There is no finished run to {what} in '{source}'.{why}")


def _print_outcome(contents: Contents, copied: Copied, did: str) -> int:
    """Print what was copied and what was left out. Return the exit code: 2 where a finished run or a ledger was left
    out, else 0.

    did: the rest of the first line.
    """
    known = len(contents.found) - len(copied.locked) - copied.records
    there = f", {known} there already" if known else ""
    print(f"{counted(copied.records, 'run')} and {counted(copied.ledgers, 'ledger')} of sweeps {did}{there}")
    for line in contents.left_out:
        print(f"left out: {line}")
    locked = [
        f"{folder}: another process trains or copies this trial. Repeat the command when that has ended."
        for folder in copied.locked
    ]
    for line in [*contents.damaged, *locked]:
        print(f"left out: {line}", file=sys.stderr)
    return 2 if contents.damaged or locked else 0


def _reached(records: list[Record], uri: str | None) -> Tracking:
    """Say where records go, and return the options of tracking. Raises UserError if the store cannot be used.

    uri: of the store; None: as tracking is configured here.
    """
    from pflsweep.config.compose import compose
    from pflsweep.tracking.address import destination_of_records, experiment_of
    from pflsweep.tracking.run import reach

    # The tracking of a trial without any override
    options = compose([]).tracking
    options = replace(options, uri=uri or options.uri)
    experiments = sorted({experiment_of(record.tracking) for record in records})
    for name in experiments:
        reach(replace(options, experiment=name))
    print(destination_of_records(options, experiments))
    return options


def _track(records: list[Record], options: Tracking) -> None:
    """Send records to MLflow, as far as it lacks them, each to the experiment of its own."""
    from tqdm import tqdm

    from pflsweep.tracking.logging import labels_alone
    from pflsweep.tracking.run import send

    searching = find_searches(records).trials
    sent, said = 0, time.monotonic()
    for done, record in enumerate(tqdm(records, desc="to MLflow", unit="run", disable=None)):
        # A log has lines, where a terminal has a bar
        if not sys.stderr.isatty() and time.monotonic() - said >= EVERY:
            print(f"to MLflow: {done} of {counted(len(records), 'run')}", file=sys.stderr, flush=True)
            said = time.monotonic()
        # Without labels a run that is there already keeps those of its sweep
        labels = labels_alone(record, "search") if record.meta["identity"] in searching else None
        sent += send(replace(options, experiment=record.tracking.experiment), record, labels)
    print(f"{counted(sent, 'run')} sent to MLflow")


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
    for each, where in ((out, "where records are"), (into, "folder to copy into")):
        each.add_argument("--runs", type=Path, default=Path("runs"), metavar="DIR", help=f"{where} (runs)")
    return parser
