"""The record folder: tables, checkpoint, lock, and errors about damaged files."""

import json
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from pflsweep.records.checkpoint import Checkpoint
from pflsweep.records.errors import Damaged
from pflsweep.records.provenance import code_versions
from pflsweep.records.record import Record
from pflsweep.records.writer import RecordWriter
from pflsweep.util import files
from pflsweep.util.errors import UserError, without_password
from pflsweep.util.files import locked_folder
from tests.report.records import meta

META = meta()


def made(folder: Path, rounds: int = 3) -> RecordWriter:
    """Return a written record of a few rounds, evaluated in every other one."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {"train": {"rounds": rounds}, "seed": 0}
    record = RecordWriter.new(folder, META, config, pd.DataFrame({"client": [0]}))
    record.begin()
    for t in range(1, rounds + 1):
        row: dict[str, Any] = {"round": t, "seconds": 0.5, "eval_seconds": 0.25}
        clients = None
        if t % 2:
            row["personal_accuracy"] = t / 10
            clients = pd.DataFrame({"round": t, "view": "personal", "client": [0, 1], "n": 2, "correct": [1, 2]})
        record.append(row, clients, {"A": np.full((2, 2), t)})
    record.write(Checkpoint(META["identity"], {"round": rounds, "server": [torch.ones(2)]}, {}))
    return record


def test_what_is_written_is_read(tmp_path: Path) -> None:
    record = made(tmp_path)
    again = Record(tmp_path)
    pd.testing.assert_frame_equal(again.rounds, record.rounds)
    pd.testing.assert_frame_equal(again.clients, record.clients)
    assert again.matrices["A"].tolist() == [[3, 3], [3, 3]]
    assert again.done == 3
    assert again.status["rounds"] == 3
    assert again.status["seconds"] == pytest.approx(2.25)
    checkpoint = again.checkpoint()
    assert checkpoint is not None
    assert checkpoint.round == 3
    assert torch.equal(checkpoint.simulation["server"][0], torch.ones(2))
    assert not list(tmp_path.glob(".*")), "temporary files are left"


def test_truncate_forgets_later_rounds(tmp_path: Path) -> None:
    record = made(tmp_path)
    record.truncate(2)
    assert record.rounds["round"].tolist() == [1, 2]
    assert record.clients["round"].unique().tolist() == [1]
    assert record.status["seconds"] == pytest.approx(1.5)


@pytest.mark.parametrize("read_before", [False, True])
def test_truncate_shows_the_matrix_of_that_round(tmp_path: Path, read_before: bool) -> None:
    made(tmp_path)
    record = Record(tmp_path)
    if read_before:
        assert record.matrices["A"].tolist() == [[3, 3], [3, 3]]
    record.truncate(2)
    assert record.matrices["A"].tolist() == [[2, 2], [2, 2]]
    assert record.matrices["A@round"].tolist() == [1, 2]


def test_clients_of_some_rounds(tmp_path: Path) -> None:
    written = made(tmp_path, 5)
    for record in (written, Record(tmp_path)):
        assert record.clients_in(1, 5)["round"].tolist() == [1, 1, 5, 5]
        pd.testing.assert_frame_equal(record.clients_in(3), written.clients_in(3))
    with pytest.raises(UserError, match=r"clients\.parquet.*without the scores of round 2"):
        Record(tmp_path).clients_in(1, 2)


def test_tables_are_read_when_they_are_asked_for_and_damage_is_said_then(tmp_path: Path) -> None:
    """Damage inside a file, which leaves its end whole, is found when the table is read."""
    made(tmp_path)
    for name, ask in (("clients.parquet", "clients"), ("matrices.npz", "matrices")):
        file = tmp_path / name
        content = file.read_bytes()
        file.write_bytes(content[:4] + bytes(100) + content[104:])
        record = Record(tmp_path)
        with pytest.raises(UserError, match=rf"{name} cannot be read"):
            getattr(record, ask)
        file.write_bytes(content)
    (tmp_path / "clients.parquet").write_bytes((tmp_path / "clients.parquet").read_bytes()[:4] + bytes(100))
    with pytest.raises(UserError, match=r"clients\.parquet cannot be read"):
        Record(tmp_path)


def test_what_is_trained_since_a_record_was_opened_is_not_in_it(tmp_path: Path) -> None:
    made(tmp_path, 3)
    record = Record(tmp_path)
    shutil.rmtree(tmp_path)
    made(tmp_path, 5)
    assert record.rounds["round"].max() == 3
    assert record.clients["round"].max() == 3
    assert record.matrices["A@round"].tolist() == [1, 2, 3]


def test_a_record_that_goes_on_is_the_one_of_an_undisturbed_run(tmp_path: Path) -> None:
    """The last round was evaluated as the last one, and is not due any more when the trial goes on."""
    whole, cut = made(tmp_path / "whole", 5), RecordWriter(made(tmp_path / "cut", 3).folder)
    cut.truncate(3)
    cut.set_scores_apart(lambda t: t == 1)
    assert cut.evaluated == [1]
    assert cut.clients["round"].unique().tolist() == [1]
    scored = whole.clients_in(3)
    cut.amend({"personal_accuracy": 0.3}, scored)
    assert (cut.done, cut.evaluated, cut.last_row["personal_accuracy"]) == (3, [1, 3], 0.3)
    for t in (4, 5):
        row = whole.rounds[whole.rounds["round"] == t].to_dict("records")[0]
        clients = whole.clients_in(t)
        cut.append(row, clients if len(clients) else None, {"A": np.full((2, 2), t)})
    cut.write()
    for record in (cut, Record(cut.folder)):
        pd.testing.assert_frame_equal(record.rounds, whole.rounds)
        pd.testing.assert_frame_equal(record.clients, whole.clients)
        assert record.matrices["A@round"].tolist() == whole.matrices["A@round"].tolist()
    cut.set_scores_apart(lambda t: False)
    assert "personal_accuracy" not in cut.rounds
    assert (cut.evaluated, len(cut.clients)) == ([], 0)


FILES = (
    "meta.json",
    "config.yaml",
    "status.json",
    "rounds.parquet",
    "clients.parquet",
    "partition.parquet",
    "matrices.npz",
    "checkpoint.pt",
)
DAMAGES = ("truncated", "foreign", "empty")


@pytest.mark.parametrize(("name", "key"), [("meta.json", "created"), ("status.json", "rounds")])
def test_a_file_that_lacks_what_it_has_to_say_is_damaged(tmp_path: Path, name: str, key: str) -> None:
    made(tmp_path)
    content = json.loads((tmp_path / name).read_text())
    del content[key]
    (tmp_path / name).write_text(json.dumps(content))
    with pytest.raises(UserError, match=f"{name} cannot be read: it is without '{key}'"):
        Record(tmp_path)


@pytest.mark.parametrize(
    ("name", "damage"),
    [*[(f, d) for f in FILES for d in DAMAGES], *[(f, "missing") for f in FILES[1:6]]],
)
def test_a_damaged_file_is_named_with_what_to_do(tmp_path: Path, name: str, damage: str) -> None:
    """The error advises to move the folder only where meta.json shows that it is this trial's."""
    for folder in (tmp_path / META["identity"], tmp_path / "other"):
        made(folder)
        file = folder / name
        content = file.read_bytes()
        file.write_bytes({"truncated": content[: len(content) // 2], "foreign": b"[1, 2"}.get(damage, b""))
        if damage == "missing":
            file.unlink()
        with pytest.raises(Damaged) as caught:
            Record(folder).checkpoint()
        assert f"{file} cannot be read" in str(caught.value)
        assert "delete" not in str(caught.value).lower()
        verified = folder.name == META["identity"] and name != "meta.json"
        assert (f"move the folder {folder} away" in str(caught.value)) == verified


def test_a_checkpoint_of_another_config(tmp_path: Path) -> None:
    made(tmp_path)
    content = torch.load(tmp_path / "checkpoint.pt", weights_only=True)
    torch.save({**content, "identity": "f" * 16}, tmp_path / "checkpoint.pt")
    with pytest.raises(UserError, match=r"checkpoint\.pt is a checkpoint of another config \(f{16}, not 0{16}\)"):
        Record(tmp_path).checkpoint()


def test_a_checkpoint_of_another_format(tmp_path: Path) -> None:
    made(tmp_path)
    content = torch.load(tmp_path / "checkpoint.pt", weights_only=True)
    torch.save({**content, "format": content["format"] + 1}, tmp_path / "checkpoint.pt")
    with pytest.raises(UserError, match=r"checkpoint\.pt cannot be read"):
        Record(tmp_path).checkpoint()
    assert Record(tmp_path).done == 3


def test_a_record_of_no_rounds_has_no_scores_to_keep(tmp_path: Path) -> None:
    """As of a trial that was killed in its first minute, before its record is imported."""
    killed = RecordWriter.new(tmp_path / "killed", META, {"train": {"rounds": 3}}, pd.DataFrame({"client": [0]}))
    killed.folder.mkdir()
    killed.begin()
    record = made(tmp_path / "whole")
    record.keep_scores(Record(killed.folder))
    pd.testing.assert_frame_equal(Record(record.folder).rounds, record.rounds)


def test_a_folder_that_is_no_record(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"is not a record \(no meta\.json\)"):
        Record(tmp_path)


def test_models_that_were_not_saved(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"checkpoint\.models=true"):
        made(tmp_path).models()


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("postgresql://lab:secret@host/runs", "postgresql://lab@host/runs"),
        ("'http://lab:se/cr@et@host:5000' is away", "'http://lab@host:5000' is away"),
        ("postgresql://lab@host:5432/runs", "postgresql://lab@host:5432/runs"),
        ("postgresql://h/runs?user=lab&password=secret&x=1", "postgresql://h/runs?user=lab&password=&x=1"),
        ("'postgresql://h/runs?sslpassword=secret' is away", "'postgresql://h/runs?sslpassword=' is away"),
        ("http://host:5000", "http://host:5000"),
        ("sqlite:////home/a:b@c/mlflow.db", "sqlite:////home/a:b@c/mlflow.db"),
        ("mail a:b@c", "mail a:b@c"),
    ],
)
def test_an_address_without_its_password(text: str, shown: str) -> None:
    assert without_password(text) == shown


def test_a_record_keeps_no_password(tmp_path: Path) -> None:
    config = {"train": {"rounds": 1}, "tracking": {"uri": "postgresql://lab:secret@host/runs", "every": 5.0}}
    record = RecordWriter.new(tmp_path, META, config, pd.DataFrame({"client": [0]}))
    record.begin()
    again = RecordWriter(tmp_path)
    again.add_session(config, {"commit": None, "version": "1", "environment": {}})
    again.begin()
    for one in (record, again, Record(tmp_path)):
        assert one.config["tracking"] == {"uri": "postgresql://lab@host/runs", "every": 5.0}
    assert not [file for file in tmp_path.iterdir() if b"secret" in file.read_bytes()]
    # The command's own config keeps the password
    assert config["tracking"]["uri"] == "postgresql://lab:secret@host/runs"


@pytest.mark.parametrize(
    ("first", "sessions", "versions"),
    [
        ("a", [], 1),
        ("", [], 0),
        ("a", [(2, "a")], 1),
        ("a", [(2, "b")], 2),
        ("a", [(2, "b"), (3, "a")], 2),
        ("a", [(2, "b"), (2, "a")], 1),  # killed before its first checkpoint: its rounds were trained again
        ("a", [(3, "b"), (1, "c")], 1),  # begun anew
        ("a", [(4, "b")], 1),  # has trained nothing yet
        ("", [(2, "b")], 1),  # an older record, whose code is not known
        ("", [(2, "b"), (3, "c")], 2),
    ],
)
def test_versions_of_the_code_are_those_of_rounds_that_are_kept(
    tmp_path: Path, first: str, sessions: list[tuple[int, str]], versions: int
) -> None:
    record = made(tmp_path)
    told = [{"from": begin, "digests": {"engine": digest}} for begin, digest in sessions]
    record.meta = {**record.meta, **({"digests": {"engine": first}} if first else {}), "sessions": told}
    assert code_versions(record) == versions


def test_one_process_at_a_time(tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "x"
    with (
        locked_folder(folder),
        pytest.raises(UserError, match="Another process is training this trial"),
        locked_folder(folder),
    ):
        pass
    with locked_folder(folder):
        pass


def test_a_lock_on_a_file_that_was_removed_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flock, removed = files.fcntl.flock, []

    def late(lock: Any, how: int) -> None:
        # The holder removes the file and the folder
        if not removed:
            removed.append(lock)
            shutil.rmtree(tmp_path / "x")
        flock(lock, how)

    monkeypatch.setattr(files.fcntl, "flock", late)
    with (
        locked_folder(tmp_path / "x"),
        pytest.raises(UserError, match="Another process"),
        locked_folder(tmp_path / "x"),
    ):
        pass
    assert removed


def test_a_folder_of_ones_own_is_removed_where_nothing_was_written(tmp_path: Path) -> None:
    with locked_folder(tmp_path / "runs" / "x"):
        pass
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "runs" / "x").mkdir(parents=True)
    with locked_folder(tmp_path / "runs" / "x"):
        pass
    assert (tmp_path / "runs" / "x").exists()


@contextmanager
def full_disk() -> Iterator[None]:
    """Limit files to 300 bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (300, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.slow
def test_two_processes_may_write_one_file(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from pflsweep.util import files\n"
        "for k in range(100): files.write_json(Path(sys.argv[1]), {'k': [k] * 10000})"
    )
    file = tmp_path / "ledger.json"
    writers = [subprocess.Popen([sys.executable, "-c", code, str(file)]) for _ in range(2)]
    while any(writer.poll() is None for writer in writers):
        if file.exists():
            assert len(set(files.read_json(file)["k"])) == 1
    assert [writer.returncode for writer in writers] == [0, 0]
    assert list(tmp_path.iterdir()) == [file]


def test_what_a_killed_process_has_left_half_written_is_removed(tmp_path: Path) -> None:
    left = tmp_path / "record" / ".checkpoint.pt.0123.tmp"
    left.parent.mkdir()
    left.touch()
    with files.locked_folder(left.parent):
        assert not left.exists()


@pytest.mark.parametrize("what", ["tables", "models", "status"])
def test_a_full_disk_is_said_and_leaves_no_half_file(what: str, tmp_path: Path) -> None:
    record = made(tmp_path)
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    write = {
        "tables": record.write,
        "models": lambda: record.save_models({"w": torch.ones(1000)}),
        "status": lambda: record.set_status(error="x" * 1000),
    }[what]
    with full_disk(), pytest.raises(UserError, match=r"cannot be written to.*paths\.runs"):
        write()
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before


def test_a_config_that_could_not_be_written_twice_leaves_the_record_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(tmp_path)

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    for rounds in (4, 5):
        record = RecordWriter(tmp_path)
        record.add_session(
            {"train": {"rounds": rounds}, "seed": 0}, dict.fromkeys(("commit", "version", "environment"))
        )
        with monkeypatch.context() as patched:
            patched.setattr(files, "write_text", full)
            patched.setattr(files, "write_json", lambda path, content: path.write_text(json.dumps(content)))
            with pytest.raises(UserError, match="No space left"):
                record.begin()
    assert Record(tmp_path).config["train"]["rounds"] == 3


def test_a_folder_that_goes_while_it_is_locked_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mkdir, made_once = Path.mkdir, []

    def then_gone(path: Path, **how: Any) -> None:
        mkdir(path, **how)
        # Another process held the lock and wrote nothing
        if path.name == "x" and not made_once:
            made_once.append(path)
            path.rmdir()

    monkeypatch.setattr(Path, "mkdir", then_gone)
    with locked_folder(tmp_path / "x"):
        assert (tmp_path / "x" / "lock").exists()
    assert made_once


def test_a_folder_that_cannot_be_written_to(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(UserError, match=r"cannot be written to.*paths\.runs"),
        locked_folder(tmp_path / "file" / "x"),
    ):
        pass
