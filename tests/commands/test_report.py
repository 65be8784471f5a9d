import shutil
import subprocess
import sys
import xml.etree.ElementTree as ET

import numpy as np
import pytest

from pflsweep.commands.report import main
from pflsweep.records.record import Record
from pflsweep.records.select import choose
from pflsweep.report import figures, style
from pflsweep.util import files
from pflsweep.util.errors import UserError
from tests.report.records import create, finished, group, ledger, partition, train

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def here(tmp_path, monkeypatch):
    """Enter a working directory with two finished runs and a failed one."""
    monkeypatch.chdir(tmp_path)
    runs = tmp_path / "runs"
    finished(runs, "fedavg", [2, 4, 6, 8])
    finished(runs, "pgfed", [4, 6, 6, 8])
    train(create(runs, "fedala"), [[1, 1, 1, 1]]).set_status(status="failed", error="ValueError: the loss is nan")
    return tmp_path


def test_a_report_of_all_runs(here, capsys):
    assert main(["runs"]) == 0
    text = (here / "reports/comparison/runs.md").read_text()
    assert "| fedavg | 1 | 50.00 | \\[" in text
    assert "| last round | 95% CI over clients | minus fedavg [95% CI over clients] |" in text
    assert "60.00 (round 2)" in text
    assert "+10.00 [+0.00, +20.00] |" in text
    assert "fedala-digits-dirichlet-0" in text.split("## In no table")[1]
    assert "failed after 1 of 3 rounds: ValueError: the loss is nan" in text
    assert "`train.lr=0.05`" in text
    assert "commit: 0123456789abcdef" in text
    assert "- pgfed: `mu=0.1`" in text
    assert "1 not finished" in capsys.readouterr().out
    for name in ("accuracy", "gains"):
        assert f"({name}.png)" in text
        assert (here / f"reports/comparison/{name}.png").read_bytes().startswith(b"\x89PNG")


def test_rounds_to_a_target_on_request(here):
    main(["runs", "--target", "65"])
    text = (here / "reports/comparison/runs.md").read_text()
    assert "rounds to 65%" in text
    table = [line for line in text.split("Other metrics")[1].splitlines() if line.startswith("| ")]
    assert table[2].startswith("| fedavg |")
    assert table[2].endswith("| never |")
    assert table[3].endswith("| 2 |")


def test_the_figures_series_are_the_numbers(here):
    main(["runs", "--out", "out"])
    root = ET.parse(here / "out/accuracy.svg").getroot()
    low, high = (_heights(root, f"curve {name}") for name in ("fedavg", "pgfed"))
    # accuracies 25, 60, 50 and 30, 70, 60 percent: SVG's y grows downwards, and is linear in them
    scale = (low[0] - low[1]) / 35
    assert np.allclose(low[0] - np.array(low), scale * np.array([0, 35, 25]), atol=0.01)
    assert np.allclose(low[0] - np.array(high), scale * np.array([5, 45, 35]), atol=0.01)
    text = "".join(root.itertext())
    assert "pgfed  60.0%" in text
    assert "fedavg  50.0%" in text
    gains = ET.parse(here / "out/gains.svg").getroot()
    dots = gains.find(f".//{SVG}g[@id='gains pgfed']")
    assert dots is not None
    assert len(list(dots.iter(f"{SVG}use"))) == 4


def test_settings_have_sections_of_their_own(here):
    finished(here / "runs", "fedavg", [1, 1, 1, 1], train__lr=0.5)
    main(["runs", "--baseline", "pgfed"])
    text = (here / "reports/comparison/runs.md").read_text()
    assert "| `train.lr` | 0.05 | 0.5 |" in text
    assert "No finished run of the baseline pgfed in this setting" in text
    assert (here / "reports/comparison/accuracy-1.svg").exists()
    assert (here / "reports/comparison/accuracy-2.svg").exists()


@pytest.mark.parametrize("word", ["pgfed-*", "pgfed-digits-dirichlet-0", "IDENTITY", "FOLDER"])
def test_runs_are_chosen_by(word, here, capsys):
    folder = next(f for f in (here / "runs").iterdir() if "pgfed" in (f / "meta.json").read_text())
    main(["runs", {"IDENTITY": folder.name[:6], "FOLDER": str(folder)}.get(word, word)])
    out = capsys.readouterr().out
    assert "pgfed" in out
    assert "fedavg" not in out


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["runs", "pgfd-digits-dirichlet-0"], "Did you mean 'pgfed-digits-dirichlet-0'"),
        (["rnus"], "Did you mean 'runs'"),
        (["runs", "fedala-*"], "No finished run.*fedala-digits-dirichlet-0 failed"),
        (["runs", "--runs", "nowhere"], "no folder of runs 'nowhere'"),
        (["runs", "--out", "runs/file"], "runs/file cannot be written to .*--out DIR"),
        (["runs", "--target", "120"], "--target 120: it is an accuracy in percent"),
        (["runs", "--target", "0"], "--target 0: it is an accuracy in percent"),
        (["runs", "--target", "0.7"], r"--target 0\.7: it is in percent, not a share of 1\. Do you mean --target 70\?"),
        (["runs", "--target", "many"], "'many'"),
    ],
)
def test_bad_input(argv, message, here):
    (here / "runs/file").touch()
    with pytest.raises(UserError, match=message):
        main(argv)
    assert not (here / "reports").exists()


def test_a_damaged_record_is_named(here):
    folder = finished(here / "runs", "local", [1, 1, 1, 1]).folder
    (folder / "rounds.parquet").write_bytes(b"PAR1 and no more")
    main(["runs"])
    text = (here / "reports/comparison/runs.md").read_text()
    assert "rounds.parquet cannot be read" in text.split("## In no table")[1]
    assert "| local |" not in text


def test_a_selection_by_words_names_the_damaged_records_that_it_may_mean(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for method in ("local", "fedavg"):
        for seed in (0, 1):
            folder = finished(tmp_path / "runs", method, [1, 1, 1, 1], seed).folder
        (folder / "rounds.parquet").write_bytes(b"PAR1 and no more")
    assert main(["runs", "fedavg-*"]) == 2
    text = (tmp_path / "reports/comparison/runs.md").read_text()
    (line,) = text.split("## In no table")[1].strip().splitlines()[2:]
    assert folder.name in line, "fedavg's, and not local's"


@pytest.mark.parametrize("argv", [["runs"], ["runs", "local-*"]])
@pytest.mark.parametrize(
    ("file", "message"), [("clients.parquet", r"cannot be read: it is missing"), ("meta.json", r"no meta\.json")]
)
def test_damage_is_no_absence(argv, file, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = finished(tmp_path / "runs", "local", [1, 1, 1, 1]).folder
    (folder / file).unlink()
    with pytest.raises(UserError, match=message):
        main(argv)


def test_sessions_and_own_code_are_told_apart(here):
    for code, seed in (("aaaa", 1), ("bbbb", 2)):
        record = finished(here / "runs", "mine", [1, 1, 1, 1], seed=seed)
        record.meta["code"] = [code]
        record.add_session(record.config, {**record.meta, "commit": f"later-{code}"})
        record.begin()
        record.set_status(status="finished")
    main(["runs"])
    text = (here / "reports/comparison/runs.md").read_text()
    assert "| mine (source 1) | 1 (" in text
    assert "0123456789abcdef, then later-aaaa (mine-digits-dirichlet-1)" in text


def test_a_record_of_several_versions_of_the_code_is_marked(here):
    for seed, digest in ((1, "aaaa"), (2, "bbbb")):
        record = create(here / "runs", "pgfed", seed=seed)
        record.meta["digests"] = {"engine": "aaaa"}
        train(record, [[4, 6, 6, 8]])
        record.add_session(record.config, {**record.meta, "digests": {"engine": digest}})
        record.begin()
        train(record, [[4, 6, 6, 8]] * 2).set_status(status="finished")
    main(["runs"])
    text = (here / "reports/comparison/runs.md").read_text()
    assert "- pgfed-digits-dirichlet-2: its rounds were trained by 2 versions of the code" in text
    assert text.count("versions of the code") == 1


def test_finished_trials_of_a_sweep_without_a_record_here_are_named(here):
    (there,) = [Record(each) for each in (here / "runs").iterdir() if Record(each).meta["method"] == "pgfed"]
    trials = {"0": there.meta["identity"], "1": "a" * 16}
    content = ledger([group("mnist", "pgfed", trials=trials), group("mnist", "local", trials={"0": "b" * 16})])
    (here / "runs/sweeps").mkdir()
    files.write_json(here / "runs/sweeps/a.json", content)
    main(["runs"])
    lacking = (here / "reports/comparison/runs.md").read_text().split("without a record here")[1].split("##")[0]
    assert [line for line in lacking.splitlines() if line.startswith("- ")] == [
        f"- pgfed mnist: `{'a' * 16}`",
        f"- local mnist: `{'b' * 16}`",
    ]


def test_a_trial_counts_once(here):
    """A copy of a trial's folder does not count beside it."""
    runs = here / "runs"
    own = next(record for record in choose(runs, []).finished if record.meta["method"] == "fedavg")
    shutil.copytree(own.folder, runs / "backup")
    main(["runs"])
    text = (here / "reports/comparison/runs.md").read_text()
    assert "- runs/backup is a copy of " in text
    row = next(line for line in text.splitlines() if line.startswith("| fedavg |"))
    assert row.split("|")[2].strip() == "1"


def test_what_a_record_says_is_no_html(here):
    record = create(here / "runs", "local")
    record.set_status(status="failed", error="TypeError: <lambda>() missing & gone")
    main(["runs"])
    assert "TypeError: &lt;lambda&gt;() missing &amp; gone" in (here / "reports/comparison/runs.md").read_text()
    assert "TypeError: &lt;lambda&gt;() missing &amp; gone" in (here / "reports/comparison/runs.html").read_text()


def test_many_series_can_be_told_apart():
    looks = [look for look, _ in zip(style.series_styles(), range(28), strict=False)]
    for other in ("linestyle", "marker"):
        assert len({(look["color"], str(look[other])) for look in looks}) == 28


@pytest.mark.slow
@pytest.mark.parametrize("clients", [1, 4, 100])
def test_pictures_of_any_number_of_clients(clients, tmp_path):
    style.save(figures.labels(partition(clients)), tmp_path / "labels")
    style.save(figures.heatmap(np.eye(clients), "A"), tmp_path / "A")
    assert {p.name for p in tmp_path.iterdir()} == {"labels.png", "labels.svg", "A.png", "A.svg"}


def test_a_report_imports_neither_torch_nor_mlflow(here):
    code = (
        "import sys; from pflsweep.commands.report import main; main(['runs']);"
        "sys.exit(bool({'torch', 'mlflow', 'scipy.stats'} & set(sys.modules)))"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def _heights(root: ET.Element, gid: str) -> list[float]:
    """Return the y of a curve's points."""
    path = root.find(f".//{SVG}g[@id='{gid}']/{SVG}path")
    assert path is not None
    return [float(y) for y in path.attrib["d"].replace("M", "L").split()[2::3]]
