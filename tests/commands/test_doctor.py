"""`pflsweep doctor`: what it finds and what it calls wrong, and the page of a GPU, made on a device that every machine
has.
"""

import errno
import re
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from pflsweep.commands import doctor, gpu_page
from pflsweep.commands.main import main
from pflsweep.conformance import properties
from pflsweep.conformance.case import Case
from pflsweep.conformance.fake_device import another_device
from pflsweep.engine.workers import usable_cores
from pflsweep.models import mlp
from pflsweep.trial.speed import Workload, measured, speeds

pytestmark = pytest.mark.usefixtures("elsewhere")
TINY = Workload("tiny", 4, 0.5, 12, 4, (1, 8, 8), lambda shape, classes: mlp.build(shape, classes, hidden=[8]))


def lines(out: str) -> dict[str, list[str]]:
    """Return the printed lines by their state."""
    found: dict[str, list[str]] = {}
    for state, said in re.findall(r"^  (ok|note|WRONG) +(.*)$", out, re.MULTILINE):
        found.setdefault(state, []).append(said)
    return found


def test_a_folder_in_which_all_is_well(capsys: pytest.CaptureFixture) -> None:
    assert main(["doctor"]) == 0
    out = capsys.readouterr().out
    said = lines(out)
    assert "WRONG" not in said
    assert out.endswith("\nNothing is wrong.\n")
    for words in (f"torch {torch.__version__}", "CPU: ", "dataset=digits: 1,797 samples of 10 classes", "GB are free"):
        assert any(words in line for line in said["ok"]), words
    assert any("mlflow.db, which the first trial makes" in line for line in said["ok"])
    assert list(Path().iterdir()) == [], "it makes nothing"


def test_after_a_sweep_its_records_and_stores_are_found(capsys: pytest.CaptureFixture) -> None:
    small = ["partition.clients=6", "model.hidden=[16]", "train.epochs=1", "train.rounds=1", "tracking=none"]
    assert main(["-m", "seed=0,1", *small]) == 0
    capsys.readouterr()
    assert main(["doctor", "tracking=none"]) == 0
    said = lines(capsys.readouterr().out)["ok"]
    assert f"records: 2 in {Path('runs').absolute()}" in said
    assert f"sweeps: {Path('runs/sweeps/optuna.db').absolute()} can be read" in said


WRONG = {
    "a device that is not here": (["device=cuda"], "PyTorch sees no GPU here. Use device=cpu"),
    "data that are not here": (["dataset=cifar10", "data.root=nowhere"], "data.download=true"),
    "a server that is off": (["tracking.uri=http://127.0.0.1:9"], "tracking.uri=sqlite:///other.db"),
    "a database that is off": (
        ["workers.storage=postgresql://me:secret@127.0.0.1:9/x"],
        "start it, or mend its address",
    ),
    "a database that is not shared": (["workers.storage=sqlite://"], "Name a file: sqlite:///file.db"),
    "one database for two": (
        ["workers.storage=sqlite:///s.db", "tracking.uri=sqlite:///s.db", "tracking.backend=mlflow"],
        "Give each a database of its own",
    ),
    "a store that is none": (["tracking.uri=sqlite:///diary"], "not a database"),
    "a folder that is none": (["paths.runs=diary/runs"], "Choose another folder: paths.runs=FOLDER"),
    "a place of a sweep that is none": (["paths.runs=broken"], "move it away; records know what is trained without it"),
}


@pytest.mark.parametrize("case", WRONG)
@pytest.mark.skipif(torch.cuda.is_available(), reason="of a machine without a GPU")
def test_what_is_wrong_is_said_with_what_mends_it(case: str, capsys: pytest.CaptureFixture) -> None:
    overrides, mended = WRONG[case]
    Path("diary").write_text("dear diary\n" * 100)
    Path("broken/sweeps").mkdir(parents=True)
    Path("broken/sweeps/optuna.db").write_text("dear diary\n" * 100)
    tracked = any(word.startswith("tracking") for word in overrides)
    assert main(["doctor", *overrides, *([] if tracked else ["tracking=none"])]) == 1
    out = capsys.readouterr().out
    (line,) = lines(out)["WRONG"]
    assert mended in line
    assert "secret" not in out
    assert out.endswith("\n1 of these is wrong.\n")


def test_a_disk_without_room_is_wrong(capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "LITTLE", 1e18)
    assert main(["doctor", "tracking=none"]) == 1
    assert [line.partition(":")[0] for line in lines(capsys.readouterr().out)["WRONG"]] == [
        "paths.runs",
        "data.root",
        "TMPDIR",
    ]


def test_a_library_that_is_too_old_or_missing_is_wrong(
    capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = doctor._version
    changed = {"optuna": "1.0", "tqdm": None, "opacus": None}
    monkeypatch.setattr(doctor, "_version", lambda name: changed[name] if name in changed else known(name))
    assert main(["doctor", "tracking=none"]) == 1
    said = lines(capsys.readouterr().out)
    assert [line.partition(",")[0] for line in said["WRONG"]] == ["optuna is 1.0", "tqdm is not installed"]
    assert "pip install 'optuna<6,>=4.9'" in said["WRONG"][0]
    assert any("pip install 'pflsweep[privacy]'" in line for line in said["note"])


def test_a_gpu_that_pytorch_does_not_see_is_wrong(
    capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho 'GPU 0: NVIDIA H100 (UUID: GPU-1)'\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert main(["doctor", "tracking=none"]) == 1
    (line,) = lines(capsys.readouterr().out)["WRONG"]
    assert line.startswith("GPU 0: NVIDIA H100 is here, but PyTorch ")
    assert "https://pytorch.org/get-started" in line
    assert main(["doctor", "--gpu"]) == 2
    assert "NVIDIA H100 is here" in capsys.readouterr().err
    assert not doctor.PAGE.exists()


def test_the_page_of_a_gpu_is_printed_even_where_the_disk_is_full_by_then(
    capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    for name, made in {
        "device_name": lambda device: "a GPU",
        "processes": lambda device: 1,
        "page": lambda *args, **options: ("what took minutes", 0),
    }.items():
        monkeypatch.setattr(gpu_page, name, made)
    assert main(["doctor", "--gpu", "--out", "none/page.md"]) == 2
    assert "where you may write" in capsys.readouterr().err

    def write(path: Path, text: str) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(doctor.files, "write_text", write)
        assert main(["doctor", "--gpu", "--out", "page.md"]) == 2
    said = capsys.readouterr()
    assert "what took minutes" in said.out
    assert "No space left" in said.err
    assert main(["doctor", "--gpu", "--out", "page.md"]) == 0
    assert Path("page.md").read_text() == "what took minutes"


@pytest.mark.parametrize("words", [["train.lr=-1"], ["dataset=cifr"], ["--gpuu"], ["sweeep=x"], ["seed=0,1"]])
def test_bad_input_is_no_finding(words: list[str], capsys: pytest.CaptureFixture) -> None:
    assert main(["doctor", *words]) == 2
    assert capsys.readouterr().err.startswith("pflsweep: ")


def test_the_store_is_only_looked_at(capsys: pytest.CaptureFixture) -> None:
    with sqlite3.connect("mlflow.db") as store:
        store.execute("create table alembic_version (version_num text)")
    before = Path("mlflow.db").read_bytes()
    assert main(["doctor"]) == 0
    assert "mlflow.db answers" in capsys.readouterr().out
    assert Path("mlflow.db").read_bytes() == before


@pytest.mark.slow
def test_the_page_of_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without properties that stack trials in threads, which the fake device does not support, and long ones."""
    left_out = (properties.stacking_changes_nothing, properties.hard_clients_are_survived)
    kept = tuple(each for each in properties.ON_A_DEVICE if each not in left_out)
    monkeypatch.setattr(gpu_page, "ON_A_DEVICE", kept)
    heard: list[str] = []
    with another_device() as device:
        text, failed = gpu_page.page(device, 3600, ["fedavg", "fedala"], (TINY,), heard.append)
    assert failed == 0, text
    assert len(heard) == 3
    assert "Speed of 1 workload" in heard
    assert "\n## Speed\n" in text
    of = len(kept)
    assert f"2 methods, {of} properties each: {2 * of} of {2 * of} that were tried hold, 0 failed." in text
    assert "and the numbers are the CPU's up to rounding | 2 | 0 | 0 |" in text
    rows = [line.split(" | ") for line in text.splitlines() if line.startswith("| tiny")]
    assert [row[1] for row in rows] == [
        "CPU, one core",
        f"{device}, client by client, fp32",
        *(f"{device}, cohort at once, {precision}" for precision in ("fp32", "tf32", "bf16")),
    ]
    assert rows[0][3] == "1.00"
    assert all(float(row[2].replace(",", "")) > 0 for row in rows[:4])
    assert str(Path.home()) not in text


def test_a_page_names_what_fails_and_what_was_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    def odd(case: Case) -> None:
        """this device is odd | or even"""
        raise AssertionError("it is <odd>")

    def even(case: Case) -> None:
        """this device is even"""

    monkeypatch.setattr(gpu_page, "ON_A_DEVICE", (odd, even))
    text, failed = gpu_page.page("cpu", 60, ["fedavg"], ())
    assert failed == 1
    assert "1 methods, 2 properties each: 1 of 2 that were tried hold, 1 failed." in text
    assert r"- fedavg: this device is odd \| or even: it is &lt;odd&gt;" in text
    text, failed = gpu_page.page("cpu", 0, ["fedavg"], (TINY,))
    assert failed == 0
    assert "0 of 0 that were tried hold, 0 failed; 2 were not tried, since the time was over." in text
    assert text.count("not measured, since the time was over") == 5


@pytest.mark.slow
def test_several_processes_try_what_one_tries() -> None:
    def found(at_once: int) -> list[str]:
        text, failed = gpu_page.page("cpu", 3600, ["fedavg", "pgfed"], (), at_once=at_once)
        assert not failed, text
        return [line for line in text.splitlines() if " | " in line and "platform" not in line]

    assert found(2) == found(1)
    assert 1 <= gpu_page.processes("cpu") <= usable_cores()


def test_a_device_that_computes_otherwise_is_seen() -> None:
    class Off(Case):
        def simulation(self, **how):
            sim = super().simulation(**how)
            if how["where"]["device"] != "cpu":
                sim.schedule = replace(sim.schedule, lr=0.11)
            return sim

    case = gpu_page._case("fedavg", "meta")
    with another_device():
        properties.device_agrees_with_cpu(case)
        with pytest.raises(AssertionError, match=r"on meta: .* differs by"):
            properties.device_agrees_with_cpu(Off(**vars(case)))


def test_speeds_of_the_cpu() -> None:
    images, memory = measured(TINY, device="cpu", precision="fp32", chunk=1, seconds=1)
    assert images > 0
    assert memory is None
    found = list(speeds("cpu", 30, (TINY,)))
    assert found[0].way == "CPU, one core"
    assert [bool(each.images) for each in found] == [True] * 5, found
