"""`pflsweep data prepare` and `show`: table, line below it and picture; bad input ends with one paragraph."""

import hashlib
import io
import re
from pathlib import Path

import numpy as np
import pytest

from pflsweep.commands.main import main
from pflsweep.data.datasets import organamnist
from tests.data.loading import serve

pytestmark = pytest.mark.usefixtures("elsewhere")


@pytest.mark.slow
def test_a_line_a_client_a_summary_and_a_picture(capsys: pytest.CaptureFixture) -> None:
    assert main(["data", "show", "partition=pathological", "partition.clients=10", "partition.balanced=true"]) == 0
    head, *lines, _, summary, picture = capsys.readouterr().out.splitlines()
    assert head.split() == ["client", "train", "validation", "test", "classes", "emd"]
    assert [line.split()[0] for line in lines] == [str(i) for i in range(10)]
    assert {line.split()[4] for line in lines} == {"2"}
    assert summary.startswith("10 clients with 134.")
    assert "of 2.0 classes (2 to 2); EMD 1.60, 3.2" in summary
    assert picture == "digits-pathological-0.png"
    assert Path(picture).read_bytes().startswith(b"\x89PNG")
    assert [path.name for path in Path().iterdir()] == [picture]


def test_clusters_validation_and_new_clients_are_shown(capsys: pytest.CaptureFixture) -> None:
    wanted = "partition=latent model@partition.embedder=mlp partition.training.augment=none partition.components=8 "
    wanted += "partition.training.epochs=2 data.validation=0.1 data.new=3 data.root=data --out latent.png"
    assert main(["data", "show", *wanted.split()]) == 0
    out = capsys.readouterr().out
    head, first = (line.split() for line in out.splitlines()[:2])
    assert head == ["client", "group", "train", "validation", "test", "classes", "emd"]
    assert int(first[3]) > 0
    assert "the embedder's test accuracy is " in out
    assert "12 clients with" in out
    assert "3 more clients do not train (data.new)" in out
    assert Path("latent.png").exists()


def test_a_dataset_is_fetched_and_described(tmp_path: Path, monkeypatch, capsys: pytest.CaptureFixture) -> None:
    file = io.BytesIO()
    labels = np.array([[0], [10], [3]], np.uint8)
    arrays = {f"{part}_images": np.zeros((3, 28, 28), np.uint8) for part in ("train", "val", "test")}
    np.savez(file, **arrays, **{f"{part}_labels": labels for part in ("train", "val", "test")})
    monkeypatch.setattr(organamnist, "MD5", hashlib.md5(file.getvalue()).hexdigest())
    asked = serve(monkeypatch, {"organamnist.npz": file.getvalue()})
    for _ in range(2):
        assert main(["data", "prepare", "dataset=organamnist", f"data.root={tmp_path}"]) == 0
        first, second = capsys.readouterr().out.splitlines()
        assert first == "organamnist: 6 training and 3 test rows of 1x28x28, 11 classes"
        assert second.endswith(f"; data folder {tmp_path}")
    assert asked == [organamnist.URL], "once"
    assert main(["data", "prepare", "dataset=synthetic", "dataset.clients=4"]) == 0
    assert ", 10 classes, 4 clients or domains of its own\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["shw"], "data: there is no 'shw'. Did you mean 'show'?"),
        (["prepare", "svhn"], "data prepare: 'svhn' is not key=value"),
        (["prepare", "dataset=shakespeare"], "dataset=shakespeare reads what LEAF's"),
        (["show", "digits"], "'digits' is not key=value"),
        (["show", "dataset=digts"], "there is no dataset 'digts'. Did you mean 'digits'?"),
        (["show", "partition.clients=5000"], "partition.clients is 5000: there are only 1797 samples"),
        (["show", "partition.alfa=1"], "Unknown config key 'partition.alfa'. Did you mean 'partition.alpha'?"),
        (["show", "partition=natural"], "needs a dataset with clients of its own"),
        (
            ["show", "--out", "nowhere/x.png"],
            "nowhere cannot be written to (No such file or directory: nowhere/x.png). Choose another folder: --out",
        ),
        (["show", "--ot", "x.png"], "Did you mean '--out'?"),
    ],
)
def test_bad_input_is_one_paragraph(words: list[str], message: str, capsys: pytest.CaptureFixture) -> None:
    assert main(["data", *words]) == 2
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1
    assert list(Path().iterdir()) == []


@pytest.mark.parametrize(
    ("override", "mend"),
    [
        ("seed=0,1", "seed=0,1 has several values, .*: give it once for each value"),
        ("plan=true", "plan=true is a key of a sweep, .*: leave the key out"),
    ],
)
def test_what_only_a_sweep_takes_is_refused_without_the_flag_of_sweeps(
    override: str, mend: str, capsys: pytest.CaptureFixture
) -> None:
    for command in ("show", "prepare"):
        assert main(["data", command, override]) == 2
        said = capsys.readouterr().err
        assert re.search(f"data {command}: {mend}", said)
        assert "-m" not in said
