"""A trial from config to record: trained once, stopped and continued, extended, loaded again."""

import json
import math
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
import yaml

import pflsweep
from pflsweep.commands import list as commands_list
from pflsweep.commands.main import main
from pflsweep.config.compose import compose
from pflsweep.engine.simulation import Simulation
from pflsweep.methods.task import Task
from pflsweep.records.record import Record, digest_of_config
from pflsweep.records.writer import RecordWriter
from pflsweep.trial import progress
from pflsweep.trial.build import build
from pflsweep.trial.result import Result
from pflsweep.trial.run import Pruned, Stopped, run_trial
from pflsweep.util.errors import Diverged, UserError
from pflsweep.util.once import warn_once
from pflsweep.util.retry import StorageLost, StorageUnavailable
from tests.report.records import finished, require_same_rounds

SMALL = ["tracking=none", "partition.clients=6", "model.hidden=[16]", "train.epochs=1", "train.threads=1"]


pytestmark = pytest.mark.usefixtures("elsewhere")


def run(*overrides: str) -> Result:
    return pflsweep.run([*SMALL, *overrides])


class FakeTracker:
    """A tracker that does something after a round."""

    def __init__(self, round: int = 0, act: Any = None) -> None:
        self.round, self.act = round, act
        self.heard: list[int] = []
        self.status = ""

    def __enter__(self) -> "FakeTracker":
        return self

    def __exit__(self, *_: object) -> None: ...

    def log_rounds(self, record: Record) -> None:
        self.heard.append(record.done)
        if self.act and record.done == self.round:
            self.act()

    def finish(self, record: Record, status: str) -> None:
        self.status = status


def assert_same(one: Result, other: Result) -> None:
    """Assert that two records are bitwise equal, except times."""
    require_same_rounds(one.rounds, other.rounds)
    pd.testing.assert_frame_equal(one.clients, other.clients, check_exact=True)
    kept, theirs = one.record.matrices, other.record.matrices
    assert {name: each.tobytes() for name, each in kept.items()} == {n: each.tobytes() for n, each in theirs.items()}
    a, b = one.record.models(), other.record.models()
    for left, right in [
        (a["global"], b["global"]),
        *((a["personal"][i], b["personal"][i]) for i in a["personal"]),
    ]:
        assert (left is None) == (right is None)
        assert all(torch.equal(left[name], right[name]) for name in left or ())


def test_the_best_accuracy_is_not_the_last(tmp_path: Path) -> None:
    record = finished(tmp_path / "peaked", "fedavg", [1, 2, 3, 4])
    found = Result(record.folder, 3).personal_accuracy
    assert (found.last, found.best) == (pytest.approx(0.25), pytest.approx(0.35))


def test_the_record_of_a_trial() -> None:
    result = run("train.rounds=3", "train.eval_every=2", "checkpoint.every=0")
    assert result.rounds["round"].tolist() == [1, 2, 3]
    assert result.rounds["personal_accuracy"].isna().tolist() == [True, False, False]
    assert set(result.clients["round"]) == {2, 3}
    assert set(result.clients["view"]) == {"personal", "global"}
    assert result.rounds["cohort"].tolist() == [3, 3, 3]
    last = result.clients[(result.clients["round"] == 3) & (result.clients["view"] == "personal")]
    assert result.personal_accuracy.last == pytest.approx((last["correct"] / last["n"]).mean())
    record = result.record
    assert record.status["status"] == "finished"
    assert record.meta["name"] == "fedavg-digits-dirichlet-0"
    assert record.folder == Path("runs").absolute() / record.meta["identity"]
    assert record.config == result.config
    assert record.partition.groupby("client")["train"].sum().min() > 0
    sent = result.rounds.iloc[-1]
    model_size = 64 * 16 + 16 + 16 * 10 + 10
    assert (sent["floats_down"], sent["floats_up"]) == (model_size, model_size)


def test_a_trial_in_which_no_client_is_scored_has_no_accuracy(capsys: pytest.CaptureFixture) -> None:
    """The only client that is trained is malicious, and none of the others is evaluated."""
    whole = run("train.rounds=1")
    words = "attack=gaussian attack.share=0.34 train.participation=0.16 train.rounds=1 metrics.clients=trained"
    result = pflsweep.run([*SMALL, *words.split()], cohorts=[[0]])
    assert all(math.isnan(each) for each in result.personal_accuracy)
    loaded = pflsweep.load("runs").set_index("attack")["accuracy"]
    assert loaded.notna().sum() == 1, "the other run's"
    assert loaded.max() == pytest.approx(whole.personal_accuracy.last, abs=1e-4)
    assert main(["report", "runs"]) == 0
    assert "1 run; 1 not finished, damaged or copies" in capsys.readouterr().out
    assert "finished after 1 of 1 rounds: no client was scored" in Path("reports/comparison/runs.md").read_text()


def test_clients_without_test_rows_do_not_make_a_trial_diverge() -> None:
    rows = {"train": [range(k, 60, 3) for k in range(3)], "test": [[], range(60, 80), range(80, 100)]}
    small = [word for word in SMALL if not word.startswith("partition")]
    words = [*small, "partition.clients=3", "train.rounds=2", "train.participation=0.3", "metrics.clients=trained"]
    result = pflsweep.run(words, partition=rows, cohorts=[[0], [1]])
    assert result.rounds["personal_accuracy"].isna().tolist() == [True, False]


def test_a_clients_saved_model_is_its_own_and_no_larger() -> None:
    models = run("algorithm=local", "train.rounds=1", "train.participation=1").record.models()
    assert list(models["personal"]) == [0, 1, 2, 3, 4, 5]
    one = models["personal"][4]
    floats = sum(value.numel() for value in one.values())
    assert {value.untyped_storage().nbytes() for value in one.values()} == {4 * floats}
    assert not torch.equal(one["head.weight"], models["personal"][5]["head.weight"])


def test_summary_numbers_by_hand() -> None:
    import numpy as np

    from pflsweep.engine.evaluate import Scores
    from pflsweep.trial.tables import score_summary

    scores = Scores(
        np.array([4, 0, 8.0]), np.array([1, 0, 6.0]), np.array([2.0, np.nan, 1.0]), np.array([0.2, np.nan, 0.6])
    )
    found = score_summary(scores)
    # The mean of 0.25 and 0.75; the client without data does not count
    assert found["accuracy"] == pytest.approx(0.5)
    assert found["accuracy_weighted"] == pytest.approx(7 / 12)
    assert found["std"] == pytest.approx(0.25)
    assert found["worst10"] == pytest.approx(0.25)
    assert found["loss"] == pytest.approx(1.5)
    assert found["f1"] == pytest.approx(0.4)


def test_fedpgs_metrics_are_in_the_record() -> None:
    result = run("metrics=fedpg", "train.rounds=2")
    last = result.clients[result.clients["round"] == 2]
    n = last.pivot_table("n", "client", ["view", "target"])
    assert set(n.columns) == {(v, t) for v in ("personal", "global", "trained") for t in ("own", "subset", "all")}
    own, subset, everything = (n["personal", target] for target in ("own", "subset", "all"))
    assert set(everything) == {own.sum()}
    assert (subset > own).all()
    assert (subset < everything).all()
    table = last[(last["view"] == "trained") & (last["target"] == "all")]
    wanted = (table["correct"] / table["n"]).mean()
    assert result.rounds["trained_all_accuracy"].iloc[-1] == pytest.approx(wanted)
    assert result.rounds["trained_all_f1"].iloc[-1] == pytest.approx(table["f1"].mean(), rel=1e-6)
    # FedAvg's personal model is the global one, which has one accuracy on all clients' data
    assert last.loc[(last["view"] != "trained") & (last["target"] == "all"), "correct"].nunique() == 1


def test_what_is_scored_changes_no_model_and_no_other_score() -> None:
    plain, more = run("train.rounds=2"), run("train.rounds=2", "metrics=fedpg")
    a, b = (result.record.models()["global"] for result in (plain, more))
    assert all(torch.equal(a[name], b[name]) for name in a)
    for view in ("personal", "global"):
        assert more.rounds[f"{view}_accuracy"].tolist() == plain.rounds[f"{view}_accuracy"].tolist()
        assert more.rounds[f"{view}_f1"].tolist() == pytest.approx(plain.rounds[f"{view}_f1"].tolist())


def test_all_metrics_go_on_where_they_stopped() -> None:
    overrides = [*SMALL, "metrics=fedpg", "train.eval_every=2"]
    tracker = FakeTracker(3, lambda: signal.raise_signal(signal.SIGINT))
    with pytest.raises(Stopped):
        run_trial(compose([*overrides, "train.rounds=4"]), lambda config, record: tracker)
    pflsweep.run([*overrides, "train.rounds=4"])
    extended = pflsweep.run([*overrides, "train.rounds=5"])
    assert_same(extended, pflsweep.run([*overrides, "train.rounds=5", "paths.runs=other"]))
    assert set(extended.clients["round"]) == {2, 4, 5}
    assert extended.rounds["trained_all_accuracy"].notna().tolist() == [False, True, False, True, True]


def test_a_finished_trial_is_not_trained_again(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture) -> None:
    first = run("train.rounds=3")
    capfd.readouterr()

    def never(self: Simulation) -> None:
        raise AssertionError("trained again")

    monkeypatch.setattr(Simulation, "_next", never)
    assert_same(run("train.rounds=3", "train.chunk=2"), first)
    assert "trained already, 3 rounds" in capfd.readouterr().err
    fewer = run("train.rounds=2")
    assert fewer.rounds["round"].tolist() == [1, 2]
    assert fewer.personal_accuracy.last == first.rounds["personal_accuracy"][1]


def test_an_interrupted_extension_still_has_its_earlier_rounds() -> None:
    first = run("train.rounds=3")
    tracker = FakeTracker(5, lambda: signal.raise_signal(signal.SIGINT))
    with pytest.raises(Stopped):
        run_trial(compose([*SMALL, "train.rounds=9"]), lambda config, record: tracker)
    again = run("train.rounds=3")
    pd.testing.assert_frame_equal(again.rounds, first.rounds, check_exact=True)
    assert again.record.status["status"] == "finished"


# With 3 rounds the trial is extended
@pytest.mark.parametrize("rounds", [1, 3])
def test_a_trial_that_has_diverged_is_not_finished_by_repeating_it(rounds: int) -> None:
    diverging = ["train.lr=1e30", "checkpoint.every=0"]
    for again in (1, rounds):
        with pytest.raises(Diverged, match="no client's loss is finite after round 1: a smaller"):
            run(*diverging, f"train.rounds={again}")
    (folder,) = Path("runs").iterdir()
    assert Record(folder).status["status"] == "failed"
    assert Record(folder).done == 1


def test_a_trial_that_diverges_is_not_pruned() -> None:
    """A pruned point only loses, and a diverged one says that its learning rate is too large."""

    def pruner(record: Record) -> None:
        raise Pruned("behind others")

    with pytest.raises(Diverged):
        run_trial(compose([*SMALL, "train.rounds=2", "train.lr=1e30"]), after_round=pruner)


def test_clients_whose_loss_is_not_finite_are_warned_of(capfd: pytest.CaptureFixture) -> None:
    """Local's clients that had no turn keep the first model, whose loss is finite."""
    ended = run("algorithm=local", "train.lr=1e30", "train.participation=0.5", "train.rounds=1")
    scored = ended.record.clients_in(1).query("view == 'personal' and n > 0")
    lost = len(scored) - int(scored["loss"].abs().lt(float("inf")).sum())
    assert 0 < lost < len(scored)
    assert f"the loss of {lost} of " in capfd.readouterr().err


def test_what_is_said_of_clients_is_the_same_when_a_trial_goes_on(capfd: pytest.CaptureFixture) -> None:
    """The record also has rows of other clients' test data, which are no further clients."""
    words = ("algorithm=local", "train.lr=1e30", "train.participation=0.5", "metrics.all=true", "metrics.subset=0.5")
    tracker = FakeTracker(1, lambda: signal.raise_signal(signal.SIGINT))
    with pytest.raises(Stopped):
        run_trial(compose([*SMALL, *words, "train.rounds=9"]), lambda config, record: tracker)
    ended = run(*words, "train.rounds=1")
    scored = ended.record.clients_in(1).query("view == 'personal' and target == 'own' and n > 0")
    lost = len(scored) - int(scored["loss"].abs().lt(float("inf")).sum())
    assert f"the loss of {lost} of {len(scored)} clients is not finite" in capfd.readouterr().err


def test_under_attack_a_result_may_have_no_finite_loss() -> None:
    attacked = ["train.lr=1e30", "attack=scaled", "train.rounds=1"]
    for _ in range(2):
        assert run(*attacked).record.status["status"] == "finished"


@pytest.mark.parametrize("key", ["train.lr", "algorithm.mu", "partition.alpha"])
def test_a_number_is_the_same_trial_however_it_is_written(key: str) -> None:
    whole, point = (run("algorithm=fedprox", "train.rounds=1", f"{key}={value}") for value in ("1", "1.0"))
    assert whole.record.folder == point.record.folder
    assert whole.config["train"]["rounds"] == 1
    assert isinstance(whole.config["train"]["rounds"], int)


def test_more_rounds_extend_a_finished_trial() -> None:
    run("train.rounds=2")
    extended = run("train.rounds=5")
    assert_same(extended, run("train.rounds=5", "paths.runs=other"))
    assert extended.record.status["target"] == 5
    assert extended.config["train"]["rounds"] == 5


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["fedavg", "ditto"])
def test_kept_optimiser_states_go_on_where_they_stopped(algorithm: str) -> None:
    momentum = (f"algorithm={algorithm}", "train.momentum=0.9")
    kept = (*momentum, "train.optimiser_state=kept")
    run(*kept, "train.rounds=3")
    extended = run(*kept, "train.rounds=5")
    assert_same(extended, run(*kept, "train.rounds=5", "paths.runs=other"))
    fresh = run(*momentum, "train.rounds=5")
    assert fresh.record.folder != extended.record.folder
    assert fresh.rounds["personal_loss"].iloc[-1] != extended.rounds["personal_loss"].iloc[-1]


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["local", "fedavg", "pgfed", "fedala"])
def test_ctrl_c_stops_after_the_round_and_the_same_command_continues(algorithm: str) -> None:
    overrides = [*SMALL, "train.rounds=6", f"algorithm={algorithm}"]
    tracker = FakeTracker(3, lambda: signal.raise_signal(signal.SIGINT))
    with pytest.raises(Stopped, match="stopped after round 3 of 6; give the same command again to continue"):
        run_trial(compose(overrides), lambda config, record: tracker)
    assert tracker.status == "interrupted"
    (folder,) = Path("runs").iterdir()
    assert Record(folder).status["status"] == "interrupted"
    again = FakeTracker()
    result = run_trial(compose(overrides), lambda config, record: again)
    assert again.heard == [4, 5, 6]
    assert again.status == "finished"
    assert_same(result, pflsweep.run([*overrides, "paths.runs=other"]))


@pytest.mark.parametrize("error", [StorageUnavailable, StorageLost])
def test_where_a_database_stays_away_what_is_trained_is_kept(error: type[Exception]) -> None:
    overrides = [*SMALL, "train.rounds=5", "checkpoint.every=1000"]

    def ask(record: Record) -> None:
        if record.done == 2:
            raise error("it does not answer")

    tracker = FakeTracker()
    with pytest.raises(error):
        run_trial(compose(overrides), lambda config, record: tracker, after_round=ask)
    (folder,) = Path("runs").iterdir()
    assert (Record(folder).status["status"], tracker.status) == ("interrupted", "interrupted")
    again = FakeTracker()
    run_trial(compose(overrides), lambda config, record: again)
    assert again.heard == [3, 4, 5]


@pytest.mark.slow
def test_kill_9_loses_at_most_the_time_since_the_checkpoint() -> None:
    overrides = [*SMALL, "train.rounds=80", "checkpoint.every=0", "algorithm=pgfed"]
    process = subprocess.Popen([sys.executable, "-c", "from pflsweep.commands.main import main; main()", *overrides])
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        checkpoints = list(Path("runs").glob("*/checkpoint.pt"))
        # Read the file at once: it may be replaced while a table is read in several steps
        if checkpoints and json.loads((checkpoints[0].parent / "status.json").read_text())["rounds"] >= 3:
            break
        time.sleep(0.005)
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL, "it was over before it could be killed"
    (folder,) = Path("runs").iterdir()
    done = Record(folder).done
    assert 3 <= done < 80
    tracker = FakeTracker()
    result = run_trial(compose(overrides), lambda config, record: tracker)
    # The tables may be one write ahead of the checkpoint
    assert tracker.heard[0] in (done, done + 1)
    assert_same(result, pflsweep.run([*overrides, "paths.runs=other"]))


def test_a_bug_is_raised_and_the_record_says_so() -> None:
    def bug() -> None:
        raise RuntimeError("a bug")

    with pytest.raises(RuntimeError, match="a bug"):
        run_trial(compose([*SMALL, "train.rounds=3"]), lambda config, record: FakeTracker(2, bug))
    (folder,) = Path("runs").iterdir()
    assert Record(folder).status["status"] == "failed"
    assert Record(folder).status["error"] == "RuntimeError: a bug"


@pytest.mark.parametrize(
    "overrides", [["train.participation=2"], ["partition.clients=5000"], ["algorithm=local", "ala=on"]]
)
def test_bad_input_leaves_nothing_behind(overrides: list[str]) -> None:
    with pytest.raises(UserError):
        run(*overrides)
    assert list(Path().iterdir()) == []


def test_a_tracker_that_refuses_leaves_no_record() -> None:
    def refuse(config: dict[str, Any], record: Record) -> FakeTracker:
        raise UserError("no store")

    with pytest.raises(UserError, match="no store"):
        run_trial(compose([*SMALL, "train.rounds=2"]), refuse)
    assert list(Path().iterdir()) == []


def files(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


# Without a checkpoint the trial would begin again
@pytest.mark.parametrize("keep", ["true", "false"])
def test_a_refused_extension_leaves_the_finished_record_as_it_was(keep: str) -> None:
    folder = run("train.rounds=2", f"checkpoint.keep={keep}").record.folder
    before = files(folder)
    Path("mlflow.db").write_text("this is a diary\n" * 100)
    with pytest.raises(UserError, match="not a database"):
        run("train.rounds=3", f"checkpoint.keep={keep}", "tracking=mlflow")
    assert files(folder) == before


def test_a_folder_that_was_there_is_not_deleted() -> None:
    folder = run("train.rounds=2").record.folder
    (folder / "meta.json").unlink()
    Path("mlflow.db").write_text("this is a diary\n" * 100)
    before = files(folder)
    with pytest.raises(UserError, match="not a database"):
        run("train.rounds=2", "tracking=mlflow")
    assert files(folder) == before


def test_a_record_without_checkpoint_begins_anew(capfd: pytest.CaptureFixture) -> None:
    run("train.rounds=2", "checkpoint.keep=false")
    assert not list(Path("runs").glob("*/checkpoint.pt"))
    extended = run("train.rounds=3", "checkpoint.keep=false")
    assert "begins anew" in capfd.readouterr().err
    assert_same(extended, run("train.rounds=3", "paths.runs=other"))


def test_a_folder_of_another_config() -> None:
    folder = run("train.rounds=2").record.folder
    folder.rename(folder.with_name("kept"))
    other = run("train.rounds=2", "seed=1").record.folder
    (folder.with_name("kept")).rename(folder)
    for file in other.iterdir():
        file.replace(folder / file.name)
    with pytest.raises(UserError, match=f"{folder} holds the record of another config"):
        run("train.rounds=2")


@pytest.mark.parametrize("rounds", [1, 3])
def test_an_extension_evaluates_as_if_it_had_never_stopped(rounds: int) -> None:
    before = run(f"train.rounds={rounds}", "train.eval_every=2", "paths.runs=before")
    run(f"train.rounds={rounds}", "train.eval_every=2")
    extended = run("train.rounds=6", "train.eval_every=2")
    assert_same(extended, run("train.rounds=6", "train.eval_every=2", "paths.runs=other"))
    assert set(extended.clients["round"]) == {2, 4, 6}
    again = run(f"train.rounds={rounds}", "train.eval_every=2")
    require_same_rounds(again.rounds, before.rounds)
    pd.testing.assert_frame_equal(again.clients, before.clients, check_exact=True)
    assert again.config["train"]["rounds"] == rounds
    assert extended.record.evaluated == [2, 4, 6], "the earlier end is not in the curve"


def test_the_round_that_is_asked_for_was_evaluated() -> None:
    run("train.rounds=4", "train.eval_every=2")
    assert run("train.rounds=2", "train.eval_every=2").rounds["personal_accuracy"].notna().iloc[-1]
    with pytest.raises(UserError, match=r"not evaluated after round 3\. Ask for 2 or 4 rounds"):
        run("train.rounds=3", "train.eval_every=2")


def test_a_stopped_trial_may_end_where_it_stands() -> None:
    """The last round was not the last one when it was trained, and so is evaluated now."""
    tracker = FakeTracker(3, lambda: signal.raise_signal(signal.SIGINT))
    with pytest.raises(Stopped):
        run_trial(compose([*SMALL, "train.rounds=6", "train.eval_every=2"]), lambda config, record: tracker)
    short = run("train.rounds=3", "train.eval_every=2")
    assert_same(short, run("train.rounds=3", "train.eval_every=2", "paths.runs=other"))


def test_ctrl_c_in_the_last_round_ends_the_trial_and_is_heard() -> None:
    overrides = [*SMALL, "train.rounds=3"]
    tracker = FakeTracker(3, lambda: signal.raise_signal(signal.SIGINT))
    with pytest.raises(Stopped, match="stopped, with this trial finished"):
        run_trial(compose(overrides), lambda config, record: tracker)
    assert tracker.status == "finished"
    assert_same(pflsweep.run(overrides), run("train.rounds=3", "paths.runs=other"))


def test_a_method_of_ones_own_that_was_edited_is_trained_again(monkeypatch: pytest.MonkeyPatch) -> None:
    source = "from pflsweep.algorithms.fedavg import FedAvg\n\n\nclass Edited(FedAvg):\n    paper = 'ours'\n"
    Path("mine/algorithm").mkdir(parents=True)
    Path("mine/algorithm/edited.yaml").write_text("_target_: edited_method.Edited\n")
    monkeypatch.syspath_prepend(Path().absolute())
    folders = []
    for text in (source, source, source + "    # another thought\n"):
        Path("edited_method.py").write_text(text)
        sys.modules.pop("edited_method", None)
        result = pflsweep.run([*SMALL, "train.rounds=1", "algorithm=edited"], "mine")
        folders.append(result.record.folder)
    assert folders[0] == folders[1] != folders[2]
    assert run("train.rounds=1").record.meta["code"] == []


def test_a_model_of_ones_own_that_was_edited_is_trained_again(monkeypatch: pytest.MonkeyPatch) -> None:
    source = (
        "from pflsweep.models.mlp import build\n\n\ndef mine(shape, classes):\n    return build(shape, classes, [%d])\n"
    )
    Path("mine/model").mkdir(parents=True)
    Path("mine/model/edited.yaml").write_text("_target_: edited_model.mine\n")
    monkeypatch.syspath_prepend(Path().absolute())
    folders = []
    for width in (8, 8, 16):
        Path("edited_model.py").write_text(source % width)
        sys.modules.pop("edited_model", None)
        words = [word for word in SMALL if not word.startswith("model")]
        folders.append(pflsweep.run([*words, "train.rounds=1", "model=edited"], "mine").record.folder)
    assert folders[0] == folders[1] != folders[2]


@pytest.mark.slow
# [] is logistic regression, with nothing below the head
@pytest.mark.parametrize("hidden", ["[16]", "[]"])
@pytest.mark.parametrize("algorithm", sorted(commands_list._options("algorithm", None)))
def test_every_method_ends_with_models_that_can_be_loaded(algorithm: str, hidden: str) -> None:
    result = run("train.rounds=1", f"algorithm={algorithm}", f"model.hidden={hidden}")
    x = torch.zeros(2, *result.record.meta["shape"])
    assert result.load_personal(5)(x).shape == (2, result.record.meta["classes"])


def test_a_commit_with_changes_is_dirty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from pflsweep.trial import metadata

    (tmp_path / "package").mkdir()
    monkeypatch.setattr(metadata, "__file__", str(tmp_path / "package" / "trial" / "metadata.py"))
    # Without its cache
    monkeypatch.setattr(metadata, "commit", metadata.commit.__wrapped__)
    assert metadata.commit() is None
    name = ["-c", "user.name=n", "-c", "user.email=e"]
    for words in (["init", "-q"], [*name, "commit", "-q", "--allow-empty", "-m", "x"]):
        subprocess.run(["git", *words], cwd=tmp_path, check=True)
    commit = metadata.commit()
    assert commit is not None
    assert len(commit) == 40
    (tmp_path / "package" / "new.py").touch()
    assert metadata.commit() == f"{commit}-dirty"


def test_the_models_of_one_option_have_their_own_names() -> None:
    from pflsweep.trial import metadata

    names = ("torchvision model.name=resnet18", "torchvision model.name=shufflenet_v2_x0_5", "resnet18", "mlp")
    configs = [compose(["device=cpu", *f"model={name}".split()]) for name in names]
    metas = [metadata.describe(config, build(config)) for config in configs]
    own = [meta["model"] for meta in metas]
    assert own == ["torchvision.resnet18", "torchvision.shufflenet_v2_x0_5", "resnet18", "mlp"]


def test_a_continuation_says_where_it_ran() -> None:
    first = run("train.rounds=2").record.meta
    meta = run("train.rounds=3", "train.threads=2").record.meta
    (session,) = meta.pop("sessions")
    assert meta == first
    assert session["from"] == 3
    assert session["environment"] == first["environment"] | {"threads": 2, "cores": 2}


def test_tables_that_are_ahead_of_the_status_are_not_a_finished_trial() -> None:
    """The disk was full, or the process was killed, after the first of the tables."""
    whole = run("train.rounds=2")
    run("train.rounds=4")
    folder = whole.record.folder
    status = json.loads((folder / "status.json").read_text())
    (folder / "status.json").write_text(json.dumps({**status, "status": "failed", "rounds": 0}))
    for name in ("clients.parquet", "checkpoint.pt"):
        (folder / name).unlink()
    assert_same(run("train.rounds=2"), run("train.rounds=2", "paths.runs=other"))


def test_a_checkpoint_ahead_of_the_status_is_of_a_record_with_more_rounds() -> None:
    """A trial may be killed between the two. What is asked for next may be fewer rounds than the checkpoint has."""
    every = "train.eval_every=2"
    RecordWriter(run("train.rounds=5", every).record.folder).set_status(status="running", rounds=1)
    with pytest.raises(UserError, match=r"not evaluated after round 3\. Ask for 2 or 4 rounds"):
        run("train.rounds=3", every)


def test_rounds_before_the_first_evaluation_cannot_be_reported() -> None:
    run("train.rounds=4", "train.eval_every=4")
    with pytest.raises(UserError, match=r"not evaluated after round 2\. Ask for 4 rounds"):
        run("train.rounds=2", "train.eval_every=4")


@pytest.mark.parametrize("algorithm", ["local", "fedavg"])
def test_saved_models_are_those_that_were_evaluated(algorithm: str) -> None:
    result = run("train.rounds=2", f"algorithm={algorithm}")
    federation = build(compose([*SMALL, f"algorithm={algorithm}"])).federation
    last = result.clients[(result.clients["round"] == 2) & (result.clients["view"] == "personal")]
    for row in last.itertuples():
        x, y = federation.gather(torch.from_numpy(federation.rows["test"][row.client]))
        assert int((result.load_personal(row.client)(x).argmax(1) == y).sum()) == row.correct
    with pytest.raises(UserError, match="no client 6"):
        result.load_personal(6)
    if algorithm == "fedavg":
        state = result.load_global().state_dict()
        assert all(torch.equal(state[k], v) for k, v in result.load_personal(0).state_dict().items())
    else:
        with pytest.raises(UserError, match="local has no global model"):
            result.load_global()


def test_a_result_has_its_clients_data() -> None:
    result = run("train.rounds=1", "data.validation=0.2")
    for split in ("train", "validation", "test"):
        sizes = [len(result.data(client, split)[1]) for client in range(6)]
        assert sizes == result.record.partition.groupby("client")[split].sum().tolist()
    x, y = result.data(3)
    last = result.clients.query("view == 'personal' and target == 'own' and client == 3").iloc[-1]
    assert int((result.load_personal(3)(x).argmax(1) == y).sum()) == last["correct"]
    with pytest.raises(UserError, match="no client 6: the clients are 0 to 5"):
        result.data(6)
    with pytest.raises(UserError, match="no split 'tests': a client has train, validation, test"):
        result.data(0, "tests")
    with pytest.raises(UserError, match=r"Only a result of pflsweep\.run knows its data"):
        Result(result.record.folder, 1).data(0)


def test_a_network_that_is_not_the_whole_of_a_personal_model_is_loaded_with_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    run("train.rounds=1", "algorithm=fedper").load_personal(0)
    assert not caplog.records
    run("train.rounds=1", "algorithm=knnper").load_personal(0)
    assert "knnper predicts with more than a network: what is loaded is the network alone" in caplog.text


NOISY = """
from torch import nn
from torch.nn import functional as F

class Block(nn.Linear):
    def forward(self, x):
        return F.dropout(super().forward(x), 0.5, self.training)

def build(shape, classes):
    return nn.Sequential(nn.Flatten(), Block(64, 8), nn.Linear(8, classes))
"""


def test_a_model_that_draws_from_the_global_generator_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("noisy_model.py").write_text(NOISY)
    Path("mine/model").mkdir(parents=True)
    Path("mine/model/noisy.yaml").write_text("_target_: noisy_model.build\n")
    monkeypatch.syspath_prepend(Path.cwd())
    words = [word for word in SMALL if not word.startswith("model")]
    before = torch.get_rng_state()
    with pytest.raises(UserError, match=r"noisy: its blocks draw from PyTorch's own generator .*layers\.Dropout"):
        pflsweep.run([*words, "train.rounds=1", "model=noisy"], "mine")
    assert torch.equal(torch.get_rng_state(), before)


OWN_MODEL = """
from torch import nn
from pflsweep.models.layers import BatchNorm2d

def normed(shape, classes):
    return nn.Sequential(nn.Conv2d(1, 4, 3), BatchNorm2d(4), nn.Flatten(), nn.Linear(144, classes))

def narrow(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 7))

def other_rows(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(65, classes))

def not_flat(shape, classes):
    return nn.Sequential(nn.Linear(64, classes))

class Faulty(nn.Flatten):
    def forward(self, x):
        return super().forward(x) + None

def faulty(shape, classes):
    return nn.Sequential(Faulty(), nn.Linear(64, classes))
"""


def run_own_model(name: str, monkeypatch: pytest.MonkeyPatch, *more: str) -> Result:
    Path("own_models.py").write_text(OWN_MODEL)
    Path("mine/model").mkdir(parents=True, exist_ok=True)
    Path(f"mine/model/{name}.yaml").write_text(f"_target_: own_models.{name}\n")
    monkeypatch.syspath_prepend(Path.cwd())
    words = [word for word in SMALL if not word.startswith("model")]
    return pflsweep.run([*words, "train.rounds=1", f"model={name}", *more], "mine")


@pytest.mark.parametrize("algorithm", ["fedavg", "fedbn"])
def test_a_model_with_batch_norm_trains(algorithm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    result = run_own_model("normed", monkeypatch, f"algorithm={algorithm}")
    assert result.rounds["personal_accuracy"].notna().all()


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("narrow", "its head has 7 outputs, and the dataset has 10 classes"),
        ("other_rows", r"does not take the rows of this dataset, x \[2, 1, 8, 8\]: mat1 and mat2"),
        ("not_flat", r"does not take the rows of this dataset, x \[2, 1, 8, 8\]: mat1 and mat2 [^/]*$"),
        ("faulty", r"for \+: 'Tensor' and 'NoneType' \(.*own_models\.py, line 19\)$"),
    ],
)
def test_a_model_that_does_not_fit_the_dataset_is_refused(
    name: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UserError, match=said):
        run_own_model(name, monkeypatch)


def test_a_method_whose_first_state_does_not_follow_from_the_seed_is_refused() -> None:
    Path("mine/algorithm").mkdir(parents=True)
    Path("mine/algorithm/rnd.yaml").write_text("_target_: tests.broken.DrawsItsFirstModel\n")
    with pytest.raises(UserError, match=r"rnd: `init` or `init_client` draws from PyTorch's own .* `setup\.key`"):
        pflsweep.run([*SMALL, "train.rounds=1", "algorithm=rnd"], "mine")


def test_new_clients_of_a_method_without_a_global_model_say_what_they_fine_tune(
    capsys: pytest.CaptureFixture,
) -> None:
    for algorithm, warned in (("fedavg", False), ("fedper", True)):
        run("train.rounds=1", "data.new=1", "data.new_epochs=1", f"algorithm={algorithm}")
        assert ("no global model, so new clients fine-tune the initial model" in capsys.readouterr().err) == warned


def same(one: torch.nn.Module, other: torch.nn.Module) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


@pytest.mark.slow
def test_models_are_of_the_round_that_was_asked_for() -> None:
    two = run("train.rounds=2").load_global()
    four = run("train.rounds=4", "checkpoint.models=false")
    with pytest.raises(UserError, match=r"no models of round 4, only of round 2\. train\.rounds=4 checkpoint\.models"):
        four.load_global()
    assert same(run("train.rounds=2").load_global(), two)
    five = run("train.rounds=5").load_global()
    assert not same(five, two)
    for load in (run("train.rounds=2").load_global, lambda: run("train.rounds=2").load_personal(0)):
        with pytest.raises(
            UserError, match=r"no models of round 2, only of round 5\. .* in another folder: paths\.runs"
        ):
            load()
    assert same(run("train.rounds=2", "paths.runs=other").load_global(), two)


@pytest.mark.slow
def test_models_that_were_not_saved_are_made_from_the_checkpoint(capfd: pytest.CaptureFixture) -> None:
    overrides = ["train.rounds=3", "algorithm=ditto"]
    without = run(*overrides, "checkpoint.models=false")
    with pytest.raises(UserError, match=r"no models of round 3\."):
        without.load_personal(0)
    assert_same(run(*overrides), run(*overrides, "paths.runs=other"))
    kept = (without.record.folder / "models.pt").stat().st_mtime_ns
    run(*overrides)
    assert (without.record.folder / "models.pt").stat().st_mtime_ns == kept
    capfd.readouterr()
    for models in ("false", "true"):
        run(*overrides, "paths.runs=bare", "checkpoint.keep=false", f"checkpoint.models={models}")
    said = "its models were not saved, and there is no checkpoint to make them from; to have them, train it in another"
    assert said in capfd.readouterr().err


def test_the_tracker_is_given_every_round() -> None:
    tracker = FakeTracker()
    run_trial(compose([*SMALL, "train.rounds=3"]), lambda config, record: tracker)
    assert tracker.heard == [1, 2, 3]
    assert tracker.status == "finished"


def test_a_trial_in_bf16_is_another_trial_with_much_the_same_numbers() -> None:
    rounds = "train.rounds=3"
    exact, rounded = run(rounds), run(rounds, "train.precision=bf16")
    assert rounded.record.folder != exact.record.folder
    apart = (rounded.rounds["personal_loss"] - exact.rounds["personal_loss"]).abs()
    assert 0 < apart.max() < 0.05
    assert_same(run(rounds, "train.precision=bf16", "train.workers=2", "paths.runs=other"), rounded)
    with pytest.raises(UserError, match=r"train\.precision is 'tf32', which is of NVIDIA GPUs"):
        run("train.precision=tf32", "device=cpu")


@pytest.mark.parametrize(
    ("can", "told"),
    [
        ({"avx512_bf16": False, "amx_bf16": False}, 1),
        ({"avx512_bf16": True, "amx_bf16": False}, 0),
        ({"neon": True}, 0),
    ],
)
def test_bf16_that_the_processor_has_not_is_warned_of_once(
    can: dict[str, bool], told: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: can)
    warn_once.cache_clear()
    for seed in (0, 1):
        build(compose([*SMALL, "device=cpu", "train.precision=bf16", f"seed={seed}"]))
    build(compose([*SMALL, "device=cpu"]))
    assert caplog.text.count("here fp32 is the faster one") == told


def test_a_record_with_a_key_that_is_gone_is_still_the_trials() -> None:
    """train.compile=false, its neutral value, was in the config of each record until the key was removed."""
    folder = run("train.rounds=2").record.folder
    values, config = Record(folder).values, Record(folder).config
    meta, status = (json.loads((folder / name).read_text()) for name in ("meta.json", "status.json"))
    config["train"]["compile"] = False
    meta["neutral"] = sorted([*meta["neutral"], "train.compile"])
    status["config"] = [digest_of_config(config)]
    (folder / "config.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
    (folder / "meta.json").write_text(json.dumps(meta))
    (folder / "status.json").write_text(json.dumps(status))
    Record(folder).verify()
    assert Record(folder).values == values
    continued = run("train.rounds=3")
    assert continued.record.folder == folder
    assert_same(continued, run("train.rounds=3", "paths.runs=other"))


def test_a_gpu_neither_rounds_nor_adds_in_any_order_as_it_does_by_default() -> None:
    """cuDNN's convolutions do both by default."""
    cudnn, cuda = torch.backends.cudnn, torch.backends.cuda
    kinds = cuda.matmul, cudnn.conv  # type: ignore[attr-defined]

    def said() -> list[Any]:
        # Raises where the settings of layer kinds disagree
        with cudnn.flags():
            pass
        return [*("tf32" in kind.fp32_precision for kind in kinds), cudnn.allow_tf32, cudnn.deterministic]

    before, seen = said(), []
    tracker = FakeTracker(1, lambda: seen.extend(said()))
    run_trial(compose([*SMALL, "train.rounds=1"]), lambda config, record: tracker)
    assert seen == [False, False, False, True]
    assert said() == before == [False, True, True, False]
    assert [kind.fp32_precision for kind in kinds] == ["none", "tf32"]


@pytest.mark.slow
def test_what_is_said_first_counts_the_methods_passes(
    capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "_seconds_a_step", lambda simulation, private: 1.0)
    monkeypatch.setattr(progress, "duration", "{:.0f} s".format)
    said = []
    for method in ("fedavg", "pfedme", "ditto"):
        run(f"algorithm={method}", "train.rounds=4", "train.eval_every=4")
        said.append(int(re.search(r"about (\d+) s, going by one gradient step", capsys.readouterr().err)[1]))
    fedavg, pfedme, ditto = said
    assert pfedme == pytest.approx(5 * fedavg, rel=0.1), "but for one evaluation"
    assert ditto == pytest.approx(2 * fedavg, rel=0.1)


def test_a_step_is_timed_on_one_thread_where_workers_have_one_each(monkeypatch: pytest.MonkeyPatch) -> None:
    grad, threads, before = Task.grad, [], torch.get_num_threads()
    monkeypatch.setattr(Task, "grad", lambda *a: threads.append(torch.get_num_threads()) or grad(*a))
    torch.set_num_threads(3)
    try:
        for count, seen in (("2", 1), ("1", 3)):
            words = [word for word in SMALL if "threads" not in word] + ["device=cpu", f"train.workers={count}"]
            parts = build(compose(words))
            w0 = parts.task.vector(parts.model)
            progress.announce("", Simulation(parts.verbs, parts.task, parts.federation, parts.schedule, w0))
            assert set(threads) == {seen}
            assert torch.get_num_threads() == 3
            threads.clear()
    finally:
        torch.set_num_threads(before)
