"""The real command as a session of processes that is disturbed from outside, and a small disk for it."""

import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from json import JSONDecodeError, loads
from pathlib import Path

from tests.sweep.sweeping import MAIN, workers_of

SIZE = "48m"  # of the small disk


class Command:
    """The sweep's command in one folder: it can be given again and again. It leads a session of processes."""

    def __init__(self, folder: Path, words: Sequence[str], bytecode: Path) -> None:
        self.folder, self.words = folder, words
        self.lives, self.strange = 0, 0  # how often it was given; how often it ended for no reason that we know
        self.earlier: list[tuple[int, float]] = []  # sessions of lives before, each with the time of its end
        self._environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
        # without compiled bytecode each start would take 10 seconds more
        self._environment |= {"PYTHONPYCACHEPREFIX": str(bytecode), "PYTHONPATH": str(Path(__file__).parents[2])}
        self._environment |= {"OMP_NUM_THREADS": "1", "PYTHONFAULTHANDLER": "1"}  # the latter for `abort`

    def begin(self) -> None:
        self.lives, self.begun, self.aborted = self.lives + 1, time.time(), False
        self.allowed = {0}  # exit codes that what has happened to it explains
        out, err = (open(self.folder / f"{name}{self.lives}", "w") for name in ("out", "err"))  # noqa: SIM115
        with out, err:
            self.process = subprocess.Popen(
                [sys.executable, "-c", MAIN, *self.words],
                cwd=self.folder, env=self._environment, stdout=out, stderr=err, start_new_session=True,
            )  # fmt: skip

    def run(self, folder: Path, *words: str) -> None:
        """Run another command in another folder to its end."""
        command = [sys.executable, "-c", MAIN, *words]
        done = subprocess.run(command, cwd=folder, env=self._environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr

    @property
    def code(self) -> int | None:
        """Its exit code, None while it runs."""
        return self.process.poll()

    @property
    def printed(self) -> str:
        return (self.folder / f"out{self.lives}").read_text()

    @property
    def said(self) -> str:
        """What is on its stderr."""
        return (self.folder / f"err{self.lives}").read_text()

    @property
    def started(self) -> bool:
        """Whether it has planned the sweep: the first line on stderr tells that."""
        return bool(self.said)

    @property
    def training(self) -> bool:
        """Whether it has begun to train since it was given; workers take as long to start as the command itself."""
        for file in (self.folder / "runs").glob("*/status.json"):
            with suppress(OSError):
                if file.stat().st_mtime > self.begun:
                    return True
        return False

    def wait(self, seconds: float) -> int | None:
        with suppress(subprocess.TimeoutExpired):
            return self.process.wait(seconds)
        return None

    def close(self) -> None:
        """Note that it has ended."""
        self.earlier.append((self.process.pid, time.monotonic()))

    def abort(self) -> str:
        """End a command that does not end by itself, and return what it said and the stack of its main thread."""
        self.aborted = True
        self.process.send_signal(signal.SIGABRT)
        self.wait(5)
        self.kill()
        said, _, stacks = self.said.partition("Fatal Python error")
        frames = re.findall(
            r'File ".*/(.*)", line (\d+) in (.*)', stacks.rpartition("Current thread")[2].split("\n\n")[0]
        )
        return f"{tail(said)}; it was in {' < '.join(f'{name} ({file}:{line})' for file, line, name in frames[:10])}"

    def kill(self) -> None:
        """End all its processes."""
        send(session(self.process.pid), signal.SIGKILL)
        self.process.wait()

    def targets(self, target: str, draw: random.Random) -> list[int]:
        """The processes that an event is about. Empty for a worker where there is none now."""
        pid = self.process.pid
        workers = workers_of(pid) if target == "worker" else []
        return {"command": [pid], "group": session(pid), "worker": [draw.choice(workers)] if workers else []}[target]

    @property
    def progress(self) -> dict[str, int]:
        """Rounds of the trials that are not finished, by folder."""
        return {name: rounds for name, (_, status, rounds) in self._records().items() if status != "finished"}

    @property
    def phase(self) -> str:
        """How far the sweep has come in this folder, for a log line."""
        if not self.started:
            return "starting"
        records = self._records().values()
        finished = sum(status == "finished" for _, status, _ in records)
        running = [f"{name} in round {rounds}" for name, status, rounds in records if status == "running"]
        return ", ".join([f"{finished} finished", *running])

    def _records(self) -> dict[str, tuple[str, str, int]]:
        """Name, status and rounds of each record."""
        found = {}
        for file in sorted((self.folder / "runs").glob("*/meta.json")):
            with suppress(OSError, JSONDecodeError):
                status = loads((file.parent / "status.json").read_text())
                found[file.parent.name] = (loads(file.read_text())["method"], status["status"], status["rounds"])
        return found


def session(leader: int) -> list[int]:
    """The processes that a command has begun, itself among them, that are alive."""
    found = []
    for file in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, _, _, of = file.read_text().rpartition(")")[2].split()[:4]
            if int(of) == leader and state != "Z":
                found.append(int(file.parent.name))
    return found


def send(pids: Sequence[int], number: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def tail(text: str) -> str:
    """The last lines of what was said, in one."""
    return " | ".join(text.strip().splitlines()[-4:])[-600:]


@contextmanager
def small_disk(folder: Path) -> Iterator[None]:
    """A file system of its own in `folder`; what is in it at the end is kept. Raises OSError where it cannot be had."""
    folder.mkdir(parents=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "pflsweep-chaos", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise OSError(done.stderr.strip())
    try:
        yield
    finally:
        shutil.copytree(folder, folder.with_name("kept"))
        subprocess.run(["umount", "--lazy", str(folder)], check=True)
        folder.rmdir()
        folder.with_name("kept").rename(folder)


def no_small_disk() -> str | None:
    """Why no disk can be filled here; None where it can."""
    try:
        with tempfile.TemporaryDirectory() as place, small_disk(Path(place) / "tried"):
            return None
    except OSError as error:
        return str(error)
