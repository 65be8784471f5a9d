"""Run a trial: build its objects from the config, train the simulation, and write its record.

A trial that was stopped is continued by the same command. One that is finished is not trained again.
"""

import threading
from collections.abc import Callable, Iterable
from contextlib import nullcontext, suppress
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import pandas as pd
import torch

from pflsweep.config.compose import Config, warn_without_effect
from pflsweep.config.options import Tracking
from pflsweep.config.schema import check, typed
from pflsweep.data.prescribed import Prescribed
from pflsweep.engine import simulation as engine
from pflsweep.engine.stack import StackMember
from pflsweep.ops import memory
from pflsweep.ops.random import no_unseeded_draws
from pflsweep.records.checkpoint import Checkpoint
from pflsweep.records.content import CHECKPOINT
from pflsweep.records.provenance import trained_by
from pflsweep.records.record import Record
from pflsweep.records.writer import RecordWriter
from pflsweep.studies.study import Study
from pflsweep.tracking.address import destination
from pflsweep.tracking.logging import Labels
from pflsweep.tracking.run import RunTracker, open_run, send
from pflsweep.trial.build import Parts, build, dp_sgd
from pflsweep.trial.metadata import describe
from pflsweep.trial.new_clients import fine_tune_new_clients, fine_tuning_steps
from pflsweep.trial.process import Stop, cores, interruptible, process_wide
from pflsweep.trial.progress import Progress, announce, mention, say, warn
from pflsweep.trial.result import Result
from pflsweep.trial.tables import (
    client_rows,
    matrices,
    partition_table,
    round_row,
    score_columns,
    score_table,
)
from pflsweep.util.errors import Diverged, UserError
from pflsweep.util.files import DiskFull, locked_folder
from pflsweep.util.retry import StorageUnavailable
from pflsweep.util.signals import AGAIN
from pflsweep.util.source_hash import edited_components

AfterRound = Callable[[Record], None]  # called after each round; may raise Pruned
# Threads build their trials one after another: each reads a dataset, and all at once would need the memory of all
_BUILDING = threading.Lock()
SMALL = 250_000  # parameters of a model below which one thread is the fastest


class Stopped(KeyboardInterrupt):
    """A trial was stopped by Ctrl-C or SIGTERM, and its record was written after its round."""


class Pruned(Exception):  # noqa: N818 (no error)
    """A sweep's pruner has stopped this trial. What it has trained is kept and can be continued."""


class LeaseLost(Exception):  # noqa: N818 (a state)
    """This worker's lease of the trial has expired, so that another worker may have taken the trial over."""


def run_trial(
    config: Config,
    open_tracker: Callable[[Tracking, Record], RunTracker] = open_run,
    after_round: AfterRound = lambda record: None,
    stop: Stop = lambda: False,
    member: StackMember | None = None,
    sweep_workers: int = 1,
    prescribed: Prescribed | None = None,
    labels: Labels | None = None,
    given_keys: Iterable[str] = (),
) -> Result:
    """Train the rounds of a trial that are not trained yet, and return its result.

    open_tracker: opens the tracking of the trial, which gets each round. after_round: called after each round; it may
    raise Pruned or LeaseLost. stop: returns whether to stop after this round. member: of a stack of trials, each of
    which has a thread. sweep_workers: those of the sweep on this machine. prescribed: partition, cohorts or batches
    that are given instead of drawn; `config` has their digest in data.prescribed. labels: the trial's name and tags in
    its sweep. given_keys: those that a command sets, of which it warns where they have no effect.

    Raises UserError on bad input, also from `open_tracker`, before anything is written; Locked where another process
    trains the trial; Stopped on Ctrl-C, SIGTERM and `stop`; Pruned and LeaseLost from `after_round`; Diverged;
    DiskFull.
    """
    check(config)
    config = typed(config)
    with _BUILDING:
        parts = build(config, prescribed)
    # Not before, so that what is wrong is said alone
    warn_without_effect(given_keys, [config])
    train = config.train
    # Computed before `process_wide` sets threads to one for a small model
    share = cores(train.workers, train.threads, sweep_workers)
    # A stack of trials has set it for all of them
    alone = member is None
    with process_wide(train.threads, train.precision, _fastest(parts)) if alone else nullcontext():
        w0 = parts.task.vector(parts.model)
        draws = (
            f"{config.node('algorithm')}: `init` or `init_client` draws from PyTorch's own generator, so that numbers "
            "would not follow from the seed: draw from `setup.key`, see pflsweep.ops.random."
        )
        with no_unseeded_draws(draws):
            simulation = engine.Simulation(parts.verbs, parts.task, parts.federation, parts.schedule, w0, parts.metrics)
        meta = describe(config, parts)
        meta["environment"]["cores"] = share
        folder = Path(config.paths.runs).absolute() / meta["identity"]
        if member is not None:
            member.join(simulation)
            # Marked, since a stacked trial's seconds are also those of others
            meta["environment"]["stacked"] = member.stack.size
        if parts.study is not None:
            parts.study.check(simulation)
        # All bad input has been refused by now, before the first message
        with locked_folder(folder):
            if config.tracking.backend != "none":
                mention(destination(config.tracking))
            record = _open(folder, meta, config, simulation)
            if _is_trained(record, config.train.rounds):
                _require_results(record, config.train.rounds)
                _mention_trained(record, config.train.rounds)
                _add_models(record, simulation, config)
                send(config.tracking, record, labels)
            else:
                if record.begun:
                    _require_same_clients(record, partition_table(simulation.federation))
                    _catch_up(record, simulation, parts.study)
                    record.add_session(config.portable, meta)
                    _warn_edited(record, meta["digests"])
                _run(record, simulation, parts, config, open_tracker, after_round, stop)
    return Result(folder, config.train.rounds, config, prescribed)


def _open(folder: Path, meta: dict[str, Any], config: Config, simulation: engine.Simulation) -> RecordWriter:
    """Return the trial's record, a new one where there is none. Raises UserError if the folder holds another's."""
    if not (folder / "meta.json").exists():
        return RecordWriter.new(folder, meta, config.portable, partition_table(simulation.federation))
    record = RecordWriter(folder)
    if record.meta["identity"] != meta["identity"]:
        raise UserError(f"{folder} holds the record of another config ({record.meta['identity']}): move it away.")
    return record


def _is_trained(record: Record, rounds: int) -> bool:
    """Return whether a record has this many rounds, or more, and what is written after its last one."""
    status = record.status
    if status["status"] == "finished":
        return record.done >= rounds
    # Tables are written first, then the checkpoint, then the status: where a trial was killed or found the disk full,
    # each may be ahead of the next
    checkpoint = record.checkpoint()
    done = min(record.done, max(status["rounds"], 0 if checkpoint is None else checkpoint.round))
    return done > rounds


def _require_results(record: Record, rounds: int) -> None:
    """Raise UserError if a record of more rounds was not evaluated after this one, or has new clients that were not
    fine-tuned after it.
    """
    if record.done > rounds:
        # First, since the other error names rounds which may lack these scores
        _ = Record.as_of(record.folder, rounds).new_clients
        _require_evaluated(record, rounds)


def _mention_trained(record: Record, rounds: int) -> None:
    """Say that a trial is trained already, and which round of it is reported."""
    more = f", reported as of round {rounds}" if record.done > rounds else ""
    mention(f"{record.meta['name']}: trained already, {record.done} rounds{more} ({record.folder})")


def _add_models(record: RecordWriter, simulation: engine.Simulation, config: Config) -> None:
    """Save the models of a finished trial from its checkpoint, where the config asks for them and they are missing."""
    wanted = config.checkpoint.models and record.done == config.train.rounds
    if not wanted or record.models_round == record.done:
        return
    checkpoint = record.checkpoint()
    if checkpoint is not None and checkpoint.round == record.done:
        simulation.load(checkpoint.simulation)
        record.save_models(_models(simulation))
        return
    mention(
        f"{record.meta['name']}: its models were not saved, and there is no checkpoint to make them from; "
        "to have them, train it in another folder: paths.runs"
    )


def _catch_up(record: RecordWriter, simulation: engine.Simulation, study: Study | None) -> None:
    """Bring record, simulation and study to the checkpoint's round, in memory.

    Raises UserError if the record's tables end before that round.
    """
    checkpoint = record.checkpoint()
    if checkpoint is not None:
        simulation.load(checkpoint.simulation)
        if study is not None:
            study.load(checkpoint.study, simulation)
    elif record.done:
        name = record.meta["name"]
        say(f"{name}: its record of {record.done} rounds has no checkpoint to go on from, so it begins anew")
    if record.done < simulation.round:
        raise UserError(f"{record.folder}: the tables end before the checkpoint. Move it away to begin anew.")
    record.truncate(simulation.round)
    schedule = simulation.schedule
    record.set_scores_apart(lambda t: t % schedule.eval_every == 0 or t == schedule.rounds)


def _require_same_clients(record: Record, clients: pd.DataFrame) -> None:
    """Raise UserError if a record's rounds were trained by clients with other rows: test rows might be trained on."""
    known = record.partition
    both = [column for column in known if column in clients]
    if not np.array_equal(known[both].to_numpy(), clients[both].to_numpy()):
        raise UserError(
            f"{record.folder}: the partition gives clients other rows than those that trained the record's "
            f"{record.done} rounds. A partition must follow from its options and its seed alone. Mend it, and name "
            "another folder of runs (paths.runs), or move the record away."
        )


def _warn_edited(record: Record, digests: dict[str, str]) -> None:
    """Warn where the code was edited since the record's last round, since its rounds are then by two versions."""
    edited = [name for before in trained_by(record)[-1:] for name in edited_components(before, digests)]
    if edited:
        warn(
            f"{record.meta['name']}: the code of pflsweep that its numbers depend on ({', '.join(edited)}) was edited "
            f"since it trained round {record.done}: more rounds mark the record as trained by several versions of the "
            "code. To train all rounds with this version, name another folder: paths.runs."
        )


def _require_evaluated(record: Record, rounds: int) -> None:
    """Raise UserError if a record of more rounds was not evaluated after round `rounds`."""
    # The last round too: it would be evaluated if it were asked for
    scored = record.scored
    seen = sorted({*scored, record.done})
    if rounds not in scored:
        near = [*[t for t in seen if t < rounds][-1:], *[t for t in seen if t > rounds][:1]]
        raise UserError(
            f"train.rounds is {rounds}, but this trial's record ({record.folder}) of {record.done} rounds was not "
            f"evaluated after round {rounds}. Ask for {' or '.join(map(str, near))} rounds, or for another "
            "train.eval_every."
        )


def _run(
    record: RecordWriter,
    simulation: engine.Simulation,
    parts: Parts,
    config: Config,
    open_tracker: Callable,
    after_round: AfterRound,
    stop_requested: Stop,
) -> None:
    """Train the rounds that are left, and set the record's status. Nothing is written before tracking is open."""
    name, status = record.meta["name"], "failed"
    with open_tracker(config.tracking, record) as tracker, interruptible(stop_requested) as stop:
        record.begin()
        try:
            announce(name, simulation, dp_sgd(config), fine_tuning_steps(parts, config.data.new_epochs))
            _train(record, simulation, parts.study, config.checkpoint.every, tracker, after_round, stop)
            _finish(record, simulation, parts, config, stop)
            status = "finished"
        except KeyboardInterrupt as interrupt:
            status = "interrupted"
            record.set_status(status=status)
            total = simulation.schedule.rounds
            done = record.status["rounds"]
            raise Stopped(f"{name}: stopped after round {done} of {total}{AGAIN}") from interrupt
        except (Pruned, Diverged, StorageUnavailable, LeaseLost) as end:
            ends = {Pruned: "pruned", Diverged: "failed"}
            status = ends.get(type(end), "interrupted")
            record.write(_checkpoint(record, simulation, parts.study))
            record.set_status(status=status, error=f"{type(end).__name__}: {end}")
            raise
        except DiskFull as error:
            status = "interrupted"
            # A few bytes may still fit
            with suppress(DiskFull):
                record.set_status(status=status, error=f"{type(error).__name__}: {error}")
            raise
        except Exception as error:
            record.set_status(status=status, error=f"{type(error).__name__}: {error}")
            raise
        finally:
            # On a crowded machine that takes a minute, in which the last round would seem to hang
            if config.tracking.backend != "none":
                mention(f"{name}: sending the rest to MLflow")
            tracker.finish(record, status)
        if stop():
            raise Stopped(f"{name}: stopped, with this trial finished")


def _checkpoint(record: Record, simulation: engine.Simulation, study: Study | None) -> Checkpoint:
    """Return the checkpoint of a trial after its last trained round."""
    return Checkpoint(record.meta["identity"], simulation.state(), {} if study is None else study.state())


def _train(
    record: RecordWriter, simulation: engine.Simulation, study: Study | None, every: float, tracker: RunTracker,
    after_round: AfterRound, stop: Stop,
) -> None:  # fmt: skip
    """Train round by round, with a checkpoint every `every` seconds.

    Raises KeyboardInterrupt after a round where `stop` asks for it; Diverged; what `after_round` raises.
    """
    total = simulation.schedule.rounds
    # A longer trial did not evaluate the round that is now the last
    if simulation.round == total and total not in record.evaluated:
        scores = simulation.evaluate()
        record.amend(score_columns(scores), score_table(scores, total))
    # A trial that diverged before has to diverge again, also where no round is left
    if simulation.round in record.evaluated:
        seen = record.clients_in(simulation.round)
        # Own rows alone, as after a round that is trained; older tables have no other targets
        seen = seen[(seen["view"] == "personal") & (seen.get("target", "own") == "own")]
        _require_sound(seen["loss"].to_numpy(), seen["n"].to_numpy(), simulation, record)
    progress = Progress(record.meta["name"], simulation.round, total)
    written = perf_counter()
    if study is not None and not simulation.round:
        study.look(simulation)
    try:
        for result in simulation.run():
            row = round_row(result)
            record.append(row, client_rows(result), matrices(result))
            if study is not None:
                study.look(simulation)
            progress.round(row)
            # Before a pruner sees the round: a trial that diverges is no loser that might have won
            if result.scores:
                scored = result.scores["personal"]
                _require_sound(scored.loss, scored.n, simulation, record)
            # Before tracking, since a worker that has lost its lease must send nothing more
            after_round(record)
            tracker.log_rounds(record)
            # `_finish` writes the last round
            if result.round == total:
                break
            stopped = stop()
            if stopped or perf_counter() - written >= every:
                record.write(_checkpoint(record, simulation, study))
                written = perf_counter()
            if stopped:
                raise KeyboardInterrupt
    finally:
        progress.close()


def _require_sound(losses: np.ndarray, n: np.ndarray, simulation: engine.Simulation, record: Record) -> None:
    """Raise Diverged if no client's loss is finite any more, except under attack, where that is a valid result. Warn
    after the last round where some are not.

    losses, n [clients]: mean loss and number of rows of each client. A client without rows has no loss.
    """
    finite = np.isfinite(losses[n > 0])
    if simulation.verbs.malicious is not None or finite.all():
        return
    if not finite.any():
        raise Diverged(f"no client's loss is finite after round {simulation.round}: a smaller train.lr may help")
    if simulation.round == simulation.schedule.rounds:
        warn(
            f"{record.meta['name']}: the loss of {int((~finite).sum())} of {len(finite)} clients is not finite after "
            "the last round. What such a model predicts counts as wrong; a smaller train.lr may help."
        )


def _finish(record: RecordWriter, simulation: engine.Simulation, parts: Parts, config: Config, stop: Stop) -> None:
    """Write what a trial leaves after its last round: checkpoint, models, new clients' scores, the study's table.

    Raises KeyboardInterrupt between the epochs of new clients where `stop` asks for it. The checkpoint is there then,
    and the same command goes on.
    """
    wanted = config.checkpoint
    record.write(_checkpoint(record, simulation, parts.study))
    if wanted.models:
        record.save_models(_models(simulation))
    if parts.new is not None:
        record.save_new_clients(fine_tune_new_clients(record.meta["name"], parts.new, simulation, parts, config, stop))
    if parts.study is not None:
        record.save_study(parts.study.table(simulation))
    record.set_status(status="finished")
    # With a study no more rounds can follow
    if not wanted.keep or parts.study is not None:
        record.remove(CHECKPOINT)


def _models(simulation: engine.Simulation) -> dict[str, Any]:
    """Return the global and all personal models as state_dicts. Large numbers of clients are held in a mapped file.

    part: whether a personal model is more than its network, which is what is kept of it.
    """
    views, common, federation = simulation.task.views, simulation.global_model(), simulation.federation
    rows = memory.zeros((federation.clients, simulation.task.size), federation.dtype, torch.device("cpu"))
    part = False
    for row, w in zip(rows, simulation.personal_models(), strict=True):
        part |= len(w) > len(row)
        # A method that predicts with more than a model has the model at the beginning of its vector
        row.copy_(w[: len(row)])
    return {
        "global": None if common is None else simulation.task.state_dict(common.cpu()),
        "personal": {i: views(torch.from_numpy(row.numpy())) for i, row in enumerate(rows)},
        "part": part,
    }


def _fastest(parts: Parts) -> int | None:
    """Return the value of train.threads=auto: 1 for a small model, whose step ends before a second thread wakes up.

    With worker processes, which have one thread each, it is also 1 in this process, so that their number changes no bit
    of a result. None: PyTorch's present number.
    """
    return 1 if parts.task.size < SMALL or parts.schedule.workers > 1 else None
