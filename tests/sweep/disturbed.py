"""Run the real command as a session of processes that can be disturbed from outside, and make a small disk for it."""

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

SIZE = "48m"  # size of the small disk


class Command:
    """The sweep's command in one folder, which can be given again and again. It leads a session of processes."""

    def __init__(self, folder: Path, words: Sequence[str], bytecode: Path) -> None:
        self.folder, self.words = folder, words
        # How often it was given, and how often it ended for an unknown reason
        self.lives, self.strange = 0, 0
        self.earlier: list[tuple[int, float]] = []  # former sessions, each with the time of its end
        self._environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
        # Without compiled bytecode each start would take 10 seconds longer
        self._environment |= {"PYTHONPYCACHEPREFIX": str(bytecode), "PYTHONPATH": str(Path(__file__).parents[2])}
        # PYTHONFAULTHANDLER is for `abort`
        self._environment |= {"OMP_NUM_THREADS": "1", "PYTHONFAULTHANDLER": "1"}

    def begin(self) -> None:
        self.lives, self.begun, self.aborted = self.lives + 1, time.time(), False
        self.allowed = {0}  # exit codes that are explained by events
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
        """Return the exit code; None while the command runs."""
        return self.process.poll()

    @property
    def printed(self) -> str:
        return (self.folder / f"out{self.lives}").read_text()

    @property
    def said(self) -> str:
        """Return the content of the command's stderr."""
        return (self.folder / f"err{self.lives}").read_text()

    @property
    def started(self) -> bool:
        """Return whether the command has planned the sweep, which the first line on stderr shows."""
        return bool(self.said)

    @property
    def training(self) -> bool:
        """Return whether the command has begun to train since it was given. Its workers take as long to start as
        itself.
        """
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
        """Note that the command has ended."""
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
        """Kill all processes of the command."""
        send(session(self.process.pid), signal.SIGKILL)
        self.process.wait()

    def targets(self, target: str, draw: random.Random) -> list[int]:
        """Return the processes that an event is about; none for a worker where there is none now."""
        pid = self.process.pid
        workers = workers_of(pid) if target == "worker" else []
        return {"command": [pid], "group": session(pid), "worker": [draw.choice(workers)] if workers else []}[target]

    @property
    def progress(self) -> dict[str, int]:
        """Return the rounds of the trials that are not finished, by folder."""
        return {name: rounds for name, (_, status, rounds) in self._records().items() if status != "finished"}

    @property
    def phase(self) -> str:
        """Return how far the sweep has come in this folder, for a log line."""
        if not self.started:
            return "starting"
        records = self._records().values()
        finished = sum(status == "finished" for _, status, _ in records)
        running = [f"{name} in round {rounds}" for name, status, rounds in records if status == "running"]
        return ", ".join([f"{finished} finished", *running])

    def _records(self) -> dict[str, tuple[str, str, int]]:
        """Return name, status and rounds of each record."""
        found = {}
        for file in sorted((self.folder / "runs").glob("*/meta.json")):
            with suppress(OSError, JSONDecodeError):
                status = loads((file.parent / "status.json").read_text())
                found[file.parent.name] = (loads(file.read_text())["method"], status["status"], status["rounds"])
        return found


def session(leader: int) -> list[int]:
    """Return the living processes that a command has started, itself included."""
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
    """Return the last lines of a text as one line."""
    return " | ".join(text.strip().splitlines()[-4:])[-600:]


@contextmanager
def small_disk(folder: Path) -> Iterator[None]:
    """Mount a small file system in `folder`; its content is kept at the end. Raises OSError where that fails."""
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
    """Return why no disk can be filled here; None where it can."""
    try:
        with tempfile.TemporaryDirectory() as place, small_disk(Path(place) / "tried"):
            return None
    except OSError as error:
        return str(error)
