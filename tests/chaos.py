"""Disturb sweeps at random and compare what they leave with an undisturbed sweep, bit by bit.

    python -m tests.chaos --kills 60 --seed 1

A sweep of 14 short trials (six methods on digits, four of them with a search) is run in fresh folders, each with one of
the configurations below: one or two workers; SQLite or a PostgreSQL server of its own; two commands that share nothing
but the server. Meanwhile random events happen to it: kill -9, SIGTERM or SIGINT of the command, of one worker, or of
all its processes; SIGSTOP, and SIGCONT after longer than a silent worker keeps its trial; a restart of the server; a
full disk that is emptied again. When the command has ended, the same command is given again, until it ends by itself
with exit code 0. Then every record, the winners, the ledger, the printed tables, the report and MLflow's runs have to
be those of a sweep that nothing has disturbed. A difference is printed, and the exit code is 1.

It needs Linux. As root, runs/ is a small file system of its own with SQLite, which can be filled. Where no PostgreSQL
is installed, its configurations are left out, unless PFLSWEEP_REQUIRE_POSTGRES is set.
"""

import argparse
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import NamedTuple

import yaml

from tests.sweep.differences import Comparison, Sweep, compare
from tests.sweep.disturbed import Command, no_small_disk, send, session, small_disk, tail
from tests.sweep.postgres import Postgres, binaries

# The key that is searched for each method beside the learning rate; None: no search
METHODS = {
    "scaffold": {"algorithm.global_lr": None},
    "pgfed": {"algorithm.mu": None},
    "apple": {"algorithm.dr_lr": None, "algorithm.mu": None},
    "fedala": None,
    "fedfomo": {"algorithm.models": None, "algorithm.epsilon": None},
    "pfedme": None,
}
TRIAL = "dataset=digits partition.clients=6 model.hidden=[16] train.rounds=40 train.epochs=1"
WORDS = ["-m", "sweep=chaos.yaml", "checkpoint.every=0.2", "workers.heartbeat=1", "tracking.every=0.5"]
LEASE = 5.0  # seconds after which a silent worker's lease expires: five heartbeats
SHOWN = 20  # differences of a campaign that are printed at most
EVENTS = 14  # events of a campaign at most, so that the sweep makes progress between them

# Limits in seconds on a machine on which an undisturbed sweep takes IDLE; on a slower one they grow in proportion
IDLE = 60.0
ENDING = 20.0  # until a command has ended after SIGTERM or SIGINT: a round, a checkpoint, MLflow
FULL = 12.0  # until a command has ended after its disk was full
ORPHANED = 4.0  # for which workers may outlive their command: two heartbeats and a moment
TAKEOVER = 60.0  # how long a stopped command waits for the other machine to take its trial over
CAMPAIGN = 600.0  # for a whole sweep with its events


class Setup(NamedTuple):
    """One configuration in which the sweep is run."""

    workers: int
    postgres: bool = False
    machines: int = 1  # commands at once, each in its own folder


SETUPS = {
    "sqlite-1": Setup(1),
    "sqlite-2": Setup(2),
    "postgres-1": Setup(1, postgres=True),
    "postgres-2": Setup(2, postgres=True),
    "postgres-machines": Setup(1, postgres=True, machines=2),
}


class Abandoned(Exception):  # noqa: N818 (the campaign's end)
    """A campaign does not come to an end, so that nothing can be compared."""


class Campaign:
    """One sweep in one setup, from an empty folder to its end, with some events."""

    def __init__(self, chaos: "Chaos", number: int, setup: str, events: int) -> None:
        self.chaos, self.number, self.name, self.setup = chaos, number, setup, SETUPS[setup]
        self.folder = chaos.folder / f"{number}-{setup}"
        self.draw = random.Random(f"{chaos.seed} {number} {setup}")
        self.left, self.struck = events, Counter[str]()
        self.differences: list[str] = []
        self.server: Postgres | None = None
        self.deaths: list[set[tuple[str, int]]] = []  # for each worker that was killed, the trials that were running
        self.begun = time.monotonic()

    def run(self) -> Comparison | None:
        """Run the campaign. Return the comparison with the undisturbed sweep; None where the sweep does not come to an
        end.
        """
        with ExitStack() as stack:
            words, tracking = self._prepare(stack)
            folders = [self.folder / f"machine{k}" for k in range(self.setup.machines)]
            self.commands = [new_command(folder, words, self.chaos) for folder in folders]
            if not self.setup.postgres:
                tracking = f"sqlite:///{folders[0] / 'mlflow.db'}"
                if self.chaos.fills:
                    stack.enter_context(small_disk(folders[0] / "runs"))
            for command in self.commands:
                command.begin()
                stack.callback(command.kill)
            try:
                self._disturb()
            except Abandoned as why:
                self._differs(f"{why}: the campaign is abandoned")
                return None
            self.log("has ended, comparing")
            found = Sweep(folders, tracking, self.commands[0].printed)
            comparison = compare(self.chaos.undisturbed, found, self.chaos.report)
        self.differences += comparison.differences
        return comparison

    def _prepare(self, stack: ExitStack) -> tuple[list[str], str]:
        """Start a server where one is needed. Return the words of the command and the URI of MLflow's store."""
        words = [*WORDS, f"workers.count={self.setup.workers}"]
        if not self.setup.postgres:
            return words, ""
        assert self.chaos.binaries is not None
        self.server = Postgres(self.chaos.binaries)
        stack.callback(self.server.remove)
        optuna, mlflow = self.server.database("optuna"), self.server.database("mlflow")
        return [*words, f"workers.storage={optuna}", f"tracking.uri={mlflow}"], mlflow

    def _disturb(self) -> None:
        """Let events happen, and give each command again that has ended, until all end with exit code 0."""
        self._plan_next()
        while any(command.code != 0 for command in self.commands):
            for command in self.commands:
                if command.code not in (None, 0):
                    self._ended(command)
                    command.begin()
            running = [command for command in self.commands if command.code is None]
            if self.left and running and time.monotonic() >= self.next and (self.early or running[0].training):
                # The time counts from the beginning of training
                if not self.early:
                    self.early, self.next = True, time.monotonic() + self.pause
                elif self._strike(self.draw.choice(running)):
                    self.left -= 1
                    self._plan_next()
            self._look_for_orphans()
            if self.chaos.stopping.is_set() or time.monotonic() > self.begun + CAMPAIGN * self.chaos.slow:
                raise Abandoned(f"no end after {time.monotonic() - self.begun:.0f} s")
            time.sleep(0.1)
        for command in self.commands:
            self._ended(command)
        time.sleep(ORPHANED * self.chaos.slow)
        self._look_for_orphans()

    def _plan_next(self) -> None:
        """Draw the time of the next event: a quarter of them while the command may still be starting, the others while
        it trains.
        """
        self.early = self.draw.random() < 0.25
        self.pause = self.draw.uniform(0, 0.15) * self.chaos.duration
        self.next = time.monotonic() + (self.pause if self.early else 0)

    def _strike(self, command: Command) -> bool:
        """Draw an event and let it happen. Return False where it cannot happen now."""
        kinds = ["kill -9", "SIGTERM", "SIGINT", "SIGSTOP"] * 2
        kinds += ["restart"] * 2 if self.server else ["full disk"] * 2 if self.chaos.fills else []
        kind = self.draw.choice(kinds)
        if kind in ("restart", "full disk"):
            happened = self._restart() if kind == "restart" else self._fill(command)
            self.struck[kind] += happened
            return happened
        targets = ["command", "group", *(["worker"] if self.setup.workers > 1 else [])]
        target = self.draw.choice(targets)
        pids = command.targets(target, self.draw)
        if not pids or (kind == "kill -9" and target == "worker" and not self._may_die(command)):
            return False
        self.log(f"{kind} of {target}: {self._where(command)}")
        self.struck[f"{kind} of {target}"] += 1
        if kind == "SIGSTOP":
            self._stop(command, pids)
        else:
            self._signal(command, target, pids, kind)
        return True

    def _signal(self, command: Command, target: str, pids: list[int], kind: str) -> None:
        number = {"kill -9": signal.SIGKILL, "SIGTERM": signal.SIGTERM, "SIGINT": signal.SIGINT}[kind]
        started = command.started
        code = {"kill -9": -signal.SIGKILL, "SIGTERM": 143, "SIGINT": 130}[kind]
        if target != "worker":
            command.allowed.add(code)
        # A worker that is killed is replaced; when all were ended by other signals, the command ends
        elif kind != "kill -9":
            command.allowed |= {130, 143}
        # Before the first line and after the last one a signal ends Python itself, which the program cannot handle
        if not started or command.printed:
            command.allowed.add(-number)
        send(pids, number)
        if target != "worker" and command.wait(limit := ENDING * self.chaos.slow) is None:
            self._differs(f"{kind} of {target}: no end within {limit:.0f} s; stderr: {command.abort()}")

    def _may_die(self, command: Command) -> bool:
        """Return whether a worker may be killed: never three times at one trial without a round in between, since such
        a trial fails.
        """
        now = set(command.progress.items())
        if not now or (len(self.deaths) > 1 and now & self.deaths[-2]):
            return False
        self.deaths.append(now)
        return True

    def _stop(self, command: Command, pids: list[int]) -> None:
        """Suspend processes for longer than their lease; with two machines often until the other has taken their trial
        over.
        """
        begun = time.monotonic()
        others = [other for other in self.commands if other is not command and other.code is None]
        under_way = set(command.progress).difference(*(other.progress for other in others))
        long = self.draw.random() < 0.6
        pause = LEASE + self.draw.uniform(1, 4)
        send(pids, signal.SIGSTOP)
        time.sleep(pause)
        # A trial is taken over only when nothing else is left to claim
        while long and any(other.code is None and not under_way & set(other.progress) for other in others):
            if time.monotonic() > begun + TAKEOVER * self.chaos.slow:
                break
            time.sleep(0.1)
        send(pids, signal.SIGCONT)
        taken = any(under_way & set(other.progress) for other in others)
        over = ", its trial taken over by the other machine" if taken else ""
        self.log(f"SIGCONT after {time.monotonic() - begun:.0f} s{over}")

    def _restart(self) -> bool:
        assert self.server is not None
        for command in self.commands:
            self.log(f"restart of the server: {self._where(command)}")
            # At the start the command checks whether the disk can be used
            if not command.training:
                command.allowed.add(2)
        with self.server.away():
            time.sleep(self.draw.uniform(0, 6))
        return True

    def _fill(self, command: Command) -> bool:
        """Fill the disk of a command that trains, check how the command ends, and make room again."""
        if not command.training:
            return False
        self.log(f"full disk: {self._where(command)}")
        runs, begun = command.folder / "runs", time.monotonic()
        ballast = runs / ".ballast"
        command.allowed.add(2)
        with suppress(OSError), open(ballast, "wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))
        code = command.wait(FULL * self.chaos.slow + 20)
        took = time.monotonic() - begun
        if code is None:
            self._differs(f"full disk: no end after {took:.0f} s; stderr: {command.abort()}")
        elif code == 2:
            if took > FULL * self.chaos.slow:
                self._differs(f"full disk: no end before {took:.0f} s")
            if str(runs) not in command.said or "space" not in command.said.lower():
                self._differs(f"full disk: no word of the folder and its space, but {tail(command.said)}")
        ballast.unlink()
        return True

    def _ended(self, command: Command) -> None:
        """Check how a command has ended."""
        command.close()
        code = command.code
        if code not in command.allowed and not command.aborted:
            # An unexpected exit code, although an event caused it
            command.strange += code not in (-signal.SIGTERM, -signal.SIGINT)
            self._differs(f"the command ended with exit code {code}; stderr ends with {tail(command.said)}")
        elif "Traceback" in command.said and not command.aborted and not {-signal.SIGINT, -signal.SIGTERM} & {code}:
            self._differs(f"a traceback, with exit code {code}: {tail(command.said)}")
        if command.strange == 3:
            raise Abandoned("the command has ended three times for no reason")

    def _look_for_orphans(self) -> None:
        """Check that workers end soon after their command."""
        for command in self.commands:
            for leader, ended in list(command.earlier):
                if time.monotonic() > ended + ORPHANED * self.chaos.slow:
                    command.earlier.remove((leader, ended))
                    if pids := session(leader):
                        self._differs(
                            f"{len(pids)} processes outlive their command by {ORPHANED * self.chaos.slow:.0f} s"
                        )
                        send(pids, signal.SIGKILL)

    def _where(self, command: Command) -> str:
        return f"{f'{command.folder.name}: ' if self.setup.machines > 1 else ''}{command.phase}"

    def _differs(self, what: str) -> None:
        self.log(f"DIFFERENCE {what}")
        self.differences.append(what)

    def log(self, text: str) -> None:
        print(f"[{self.number} {self.name} {time.monotonic() - self.begun:5.1f} s] {text}", flush=True)


def new_command(folder: Path, words: Sequence[str], chaos: "Chaos") -> Command:
    """Return the sweep's command in a new folder."""
    folder.mkdir(parents=True)
    space = {name: axes for name, axes in METHODS.items() if name in chaos.methods}
    content = {
        "seeds": [0],
        "settings": {"digits": TRIAL},
        "methods": {name: f"algorithm={name}" for name in chaos.methods},
        "search": "tune=grid",
        "space": {"all": {"train.lr": {"grid": [0.1, 0.01]}}, **space},
    }
    (folder / "chaos.yaml").write_text(yaml.safe_dump(content, sort_keys=False))
    return Command(folder, words, chaos.folder / "bytecode")


class Chaos:
    """Campaigns, two at once, until a number of events has happened."""

    def __init__(self, folder: Path, kills: int, seed: int, setups: Sequence[str], methods: Sequence[str]) -> None:
        self.folder, self.kills, self.seed, self.setups, self.methods = folder, kills, seed, setups, methods
        self.binaries, self.fills = binaries(), False
        self.events, self.differences = Counter[str](), list[str]()
        self.comparisons = self.campaigns = 0
        self._lock, self._left, self.stopping = threading.Lock(), kills, threading.Event()

    def run(self) -> int:
        """Return the exit code: 1 where anything differs."""
        if self.binaries is None:
            why = "there is no PostgreSQL server here (Debian: apt-get install postgresql)"
            assert not os.environ.get("PFLSWEEP_REQUIRE_POSTGRES"), why
            print(f"Without PostgreSQL: {why}.")
            self.setups = [name for name in self.setups if not SETUPS[name].postgres]
        why = no_small_disk()
        self.fills = why is None
        if why is not None:
            print(f"Without full disks: no file system can be mounted here ({why}).")
        self._run_undisturbed()
        with ThreadPoolExecutor(2) as pool:
            working = [pool.submit(self._work) for _ in range(2)]
            try:
                # Thread.join would count a thread as ended when it is interrupted
                wait(working)
            except KeyboardInterrupt:
                print("Ending the campaigns; what they have shown follows.", flush=True)
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
                self._left = 0
                self.stopping.set()
                wait(working)
        return self._conclude()

    def _run_undisturbed(self) -> None:
        began = time.monotonic()
        self.quiet = new_command(self.folder / "undisturbed", WORDS, self)
        self.quiet.begin()
        code = self.quiet.process.wait()
        assert code == 0, self.quiet.said
        self.duration = time.monotonic() - began
        self.slow = max(1.0, self.duration / IDLE / len(self.methods) * len(METHODS))
        store = f"sqlite:///{self.quiet.folder / 'mlflow.db'}"
        self.undisturbed = Sweep([self.quiet.folder], store, self.quiet.printed)
        print(f"An undisturbed sweep takes {self.duration:.0f} s.", flush=True)

    def report(self, folder: Path) -> str:
        """Return the page that `pflsweep report runs` writes for the records in folder/runs."""
        with tempfile.TemporaryDirectory() as out:
            self.quiet.run(folder, "report", "runs", "--out", out, "--baseline", self.methods[0])
            return (Path(out) / "runs.md").read_text()

    def _work(self) -> None:
        """Run one campaign after another."""
        while True:
            with self._lock:
                number, self.campaigns = self.campaigns, self.campaigns + 1
                quota = min(EVENTS, self._left)
                self._left -= quota
            if not quota:
                return
            setup = self.setups[number % len(self.setups)]
            campaign = Campaign(self, number, setup, quota)
            comparison = None
            try:
                comparison = campaign.run()
            except Exception as error:
                campaign.differences.append(f"the chaos test itself failed: {type(error).__name__}: {error}")
            with self._lock:
                self._left += quota - campaign.struck.total() if campaign.struck else 0
                self.events += campaign.struck
                self.comparisons += comparison.count if comparison else 0
                named = f"seed {self.seed}, campaign {number}, {setup}"
                self.differences += [f"{named}: {difference}" for difference in campaign.differences[:SHOWN]]
                if (more := len(campaign.differences) - SHOWN) > 0:
                    self.differences.append(f"{named}: and {more} more")
            same = f"{comparison.count} comparisons, " if comparison else ""
            campaign.log(f"{campaign.struck.total()} events, {same}{len(campaign.differences)} differences")

    def _conclude(self) -> int:
        for difference in self.differences:
            print(difference)
        print(f"\n{self.events.total()} events:")
        for kind, count in sorted(self.events.items()):
            print(f"  {count:4d} {kind}")
        print(f"{self.comparisons} comparisons, {len(self.differences)} differences.")
        return 1 if self.differences else 0


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        "python -m tests.chaos", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=60, help="number of events in all (60)")
    parser.add_argument("--seed", type=int, default=0, help="of what is drawn: events, targets and times (0)")
    parser.add_argument("--only", choices=SETUPS, help="one configuration alone")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="a new folder for what the sweeps leave")
    options = parser.parse_args(arguments)
    # SIGTERM cleans up processes, server and mounts like Ctrl-C
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    # Background jobs of a shell ignore SIGINT, and the commands that are started here would inherit that
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with ExitStack() as stack:
        folder = options.keep or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder = folder.absolute()
        setups = [options.only] if options.only else list(SETUPS)
        return Chaos(folder, options.kills, options.seed, setups, list(METHODS)).run()


if __name__ == "__main__":
    sys.exit(main())
