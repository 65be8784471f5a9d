"""The main function of a worker's process. It watches its command before it imports anything that takes long."""

import os
import pickle
import signal
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

from pflsweep.util import signals, streams


def main(plan_file: str, number: int, name: str, error_file: str, command_pid: int, heartbeat: int) -> int:
    """Train until the plan is settled, the command closes this process's standard input, or the command is gone.

    plan_file: JSON of the plan. name: by which the command reports this worker's death. error_file: where an exception
    is pickled. command_pid: process id of the command. heartbeat: seconds. Return the exit code, 1 after an exception.
    """
    over = threading.Event()
    threading.Thread(target=_follow, args=(over, command_pid, heartbeat), daemon=True).start()
    try:
        with signals.terminable(), streams.unbroken():
            from pflsweep.sweep.plan import read_plan
            from pflsweep.sweep.worker import work
            from pflsweep.trial.progress import quietly

            with quietly(mute=True):
                work(read_plan(Path(plan_file)), number, over.is_set, name)
    except KeyboardInterrupt:
        return 0
    except BaseException as raised:
        from pflsweep.engine.workers import picklable
        from pflsweep.util import files

        # Where this disk is full too, the command has the exit status alone
        content = pickle.dumps(picklable(raised))
        with suppress(OSError):
            files.atomic(Path(error_file), lambda path: path.write_bytes(content))
        return 1
    return 0


def _follow(over: threading.Event, command_pid: int, heartbeat: int) -> None:
    """Interrupt this process when its standard input ends. If the command is gone, also end the process within two
    heartbeats, whatever it is doing.
    """
    os.read(sys.stdin.fileno(), 1)
    over.set()
    os.kill(os.getpid(), signal.SIGINT)
    until = time.monotonic() + 1.5 * heartbeat
    while os.getppid() == command_pid or time.monotonic() < until:
        time.sleep(0.2)
    os._exit(1)
