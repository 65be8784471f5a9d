"""Standard streams that are closed, and those whose reader goes away while a trial runs."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pflsweep.util import streams
from tests.sweep.sweeping import MAIN

# Workers are forked however short the work is
CODE = "from pflsweep.engine import workers; workers.MARGIN = workers.CROWDED = 0.0; " + MAIN
TRIAL = ["algorithm=fedavg", "tracking=none", "model.hidden=[8]", "train.rounds=2", "train.workers=2"]


def status(runs: Path) -> str:
    (file,) = runs.glob("*/status.json")
    return str(json.loads(file.read_text())["status"])


@pytest.mark.slow
@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&- <&-", "<&-"])
def test_a_trial_is_trained_where_a_standard_stream_is_closed(closed: str, tmp_path: Path) -> None:
    done = subprocess.run(
        ["bash", "-c", f'"$@" {closed}', "-", sys.executable, "-c", CODE, *TRIAL], cwd=tmp_path, capture_output=True
    )
    assert (done.returncode, status(tmp_path / "runs")) == (0, "finished"), done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("more", [[], ["-m", "seed=0", "workers.count=1"]], ids=["trial", "sweep"])
def test_a_trial_goes_on_where_nobody_reads_what_it_says(more: list[str], tmp_path: Path) -> None:
    here, there = os.pipe()
    os.close(here)
    try:
        done = subprocess.run(
            [sys.executable, "-c", CODE, *more, *TRIAL], cwd=tmp_path, stdout=there, stderr=there, timeout=300
        )
    finally:
        os.close(there)
    assert (done.returncode, status(tmp_path / "runs")) == (0, "finished")


SAYS = """
import os, sys
from pflsweep.util import streams
with streams.unbroken():
    for k in range(3):
        print(k, "out", flush=True)
        print(k, "err", file=sys.stderr)
    os.write(int(sys.argv[1]), b"done")
assert sys.stdout is sys.__stdout__
"""


@pytest.mark.parametrize("broken", ["stdout", "stderr"])
def test_a_stream_without_a_reader_is_silent_and_the_other_one_is_not(broken: str) -> None:
    here, there = os.pipe()
    os.close(here)
    seen, tell = os.pipe()
    pipes = {name: there if name == broken else subprocess.PIPE for name in streams.NAMES}
    done = subprocess.run([sys.executable, "-c", SAYS, str(tell)], pass_fds=[tell], text=True, **pipes)
    os.close(there)
    os.close(tell)
    assert os.read(seen, 10) == b"done"
    os.close(seen)
    other = "err" if broken == "stdout" else "out"
    assert (done.stdout or done.stderr) == "".join(f"{k} {other}\n" for k in range(3))
    assert done.returncode == 0


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a disk that is full, on Linux")
def test_a_full_disk_under_standard_output_is_an_error_and_under_standard_error_none() -> None:
    for name in streams.NAMES:
        with Path("/dev/full").open("w") as full:
            text = "from pflsweep.util import streams\nimport sys\nwith streams.unbroken():\n    "
            code = f"{text}print('words', file=sys.{name}, flush=True)"
            pipes = {each: full if each == name else subprocess.PIPE for each in streams.NAMES}
            done = subprocess.run([sys.executable, "-c", code], **pipes)
            assert (done.returncode != 0) == (name == "stdout")


@pytest.mark.parametrize("unbuffered", [True, False])
def test_what_is_written_comes_as_soon_as_it_did(unbuffered: bool) -> None:
    """With PYTHONUNBUFFERED at once, else when a pipe's buffer is full or at the end."""
    code = "import os\nfrom pflsweep.util import streams\nwith streams.unbroken():\n    print('first')\n"
    code += "    os.write(1, b'second ')"
    environment = {**os.environ, "PYTHONUNBUFFERED": "1" if unbuffered else ""}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert done.stdout.split() == (["first", "second"] if unbuffered else ["second", "first"])


def test_streams_that_were_replaced_stay(capsys: pytest.CaptureFixture) -> None:
    before = sys.stdout
    with streams.unbroken():
        assert sys.stdout is before
        print("words")
    assert capsys.readouterr().out == "words\n"
