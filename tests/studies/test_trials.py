"""A trial with a study has the same rounds as without and one more table, also where it was stopped and continued."""

import signal
from pathlib import Path

import pandas as pd
import pytest
import torch

import pflsweep
from pflsweep.algorithms.fedavg import FedAvg
from pflsweep.config.compose import compose
from pflsweep.methods import stock
from pflsweep.records.record import Record
from pflsweep.trial.metadata import digest_of
from pflsweep.trial.result import Result
from pflsweep.trial.run import Stopped, run_trial
from pflsweep.util.errors import UserError
from tests.trial.test_run import FakeTracker, assert_same

SMALL = [
    *("tracking=none", "partition.clients=6", "model.hidden=[16]", "train.epochs=1", "train.threads=1"),
    *("data.limit=500", "train.rounds=6", "checkpoint.every=0", "train.participation=1.0"),
]
STUDIES = {
    "personal_steps": ["algorithm=fedavg", "study=personal_steps", "study.steps=2"],
    "weight_learning": ["algorithm=fedala", "study=weight_learning", "study.client=3", "study.curves=3"],
    "trajectory": ["algorithm=fedala", "algorithm.idle=0.5", "study=trajectory", "study.since=0.2", "study.grid=3"],
}
pytestmark = pytest.mark.usefixtures("elsewhere")


def run(*overrides: str) -> Result:
    return pflsweep.run([*SMALL, *overrides])


@pytest.mark.slow
@pytest.mark.parametrize("name", STUDIES)
def test_a_trial_has_the_same_rounds_with_a_study_and_one_more_table(name: str) -> None:
    seen, plain = run(*STUDIES[name]), run(*[word for word in STUDIES[name] if "study" not in word])
    assert seen.record.folder != plain.record.folder
    assert_same(seen, plain)
    assert plain.record.study.empty
    assert len(seen.record.study)
    assert seen.record.meta["name"] == plain.record.meta["name"]
    assert (seen.record.meta["study"], plain.record.meta["study"]) == (name, "none")
    assert not (seen.record.folder / "checkpoint.pt").exists(), "no more rounds can follow"


@pytest.mark.slow
@pytest.mark.parametrize("stop", [2, 4])
@pytest.mark.parametrize("name", STUDIES)
def test_stopped_and_continued_it_has_seen_the_same(name: str, stop: int) -> None:
    whole = run(*STUDIES[name], "paths.runs=whole")
    tracker = FakeTracker(stop, lambda: signal.raise_signal(signal.SIGINT))
    with pytest.raises(Stopped):
        run_trial(compose([*SMALL, *STUDIES[name]]), lambda config, record: tracker)
    continued = run(*STUDIES[name])
    assert_same(continued, whole)
    pd.testing.assert_frame_equal(continued.record.study, whole.record.study, check_exact=True)


@pytest.mark.slow
def test_workers_change_nothing_of_what_is_seen() -> None:
    for name, words in STUDIES.items():
        one, two = (run(*words, f"train.workers={k}", f"paths.runs={name}{k}") for k in (1, 2))
        pd.testing.assert_frame_equal(one.record.study, two.record.study, check_exact=True)


@pytest.mark.slow
def test_records_from_before_there_were_studies_are_found() -> None:
    for words in (["algorithm=fedala"], ["algorithm=fedavg", "ala=on"]):
        older, now = compose(words), digest_of(compose(words), True, [])
        del older.values["algorithm" if "algorithm=fedala" in words else "ala"]["idle"]
        assert digest_of(older, True, []) == now
        idle = "algorithm.idle=0.1" if "ala=on" not in words else "ala.idle=0.1"
        for more in ("study=trajectory", idle):
            assert digest_of(compose([*words, more]), True, []) != now


@pytest.mark.parametrize("words", [STUDIES["personal_steps"], ["algorithm=fedala", "algorithm.idle=0.5"]])
def test_more_rounds_are_another_trial(words: list[str]) -> None:
    """The moment of such a study is a share of the rounds."""
    folders = [run(*words, f"train.rounds={t}").record.folder for t in (2, 3)]
    assert folders[0] != folders[1]
    assert Record(folders[0]).done == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["study=trajectoy"], "there is no study 'trajectoy'. Did you mean 'trajectory'"),
        (["study=trajectory"], "use it with algorithm=fedala, or with ala=on"),
        (["study=weight_learning", "study.client=2"], "use it with algorithm=fedala, or with ala=on"),
        (["algorithm=fedala", "study=trajectory", "study.client=6"], "study.client is 6, but the clients are 0 to 5"),
        (["algorithm=fedala", "study=trajectory", "train.rounds=1"], "the rounds 1 to 1: for a plane it takes two"),
        (["algorithm=fedala", "study=weight_learning"], "study.client is 8, but the clients are 0 to 5"),
        (["algorithm=fedala", "algorithm.rate=0", "study=weight_learning", "study.client=2"], "no weight learns"),
        (["algorithm=fedrep", "ala=on", "study=trajectory"], "train one whole model and send it"),
        (["algorithm=fedrep", "ala=on", "study=weight_learning", "study.client=2"], "sends whole models"),
        (["algorithm=local", "study=personal_steps"], "this method has none"),
        (["study=personal_steps", "study.steps=0"], "study.steps is 0"),
        (["study=personal_steps", "attack=gaussian"], "an attack makes some malicious"),
        (
            ["algorithm=fedala", "algorithm.idle=0.5", "study=trajectory", "study.client=4", "attack=scaled"],
            "study.client is 4, which the attack makes malicious, and its uploads are forged: name an honest client",
        ),
        (["algorithm=fedala", "study=weight_learning", "study.client=2", "train.rounds=1"], "train.rounds is 1"),
        (["algorithm=fedala", "algorithm.idle=1", "study=weight_learning", "study.client=2"], "a smaller `idle`"),
        (["study=personal_steps", "data.new=5"], "two clients that train, and here is one"),
        (["study=personal_steps", "++study.step=1"], "Did you mean 'study.steps'"),
        (["study=personal_steps", "study._target_=pflsweep.algorithms.fedavg.FedAvg"], "is not a study"),
    ],
)
def test_what_cannot_be_looked_at_is_refused_before_anything_is_written(words: list[str], said: str) -> None:
    with pytest.raises(UserError) as error:
        run(*words)
    assert said in str(error.value)
    assert not list(Path().glob("runs/*/meta.json"))


class HasNoModel(FedAvg):
    """Method that says by a verb of its own that it has no global model."""

    def global_model(self, server: stock.Server) -> None:
        return None


def test_a_method_that_has_no_global_model_in_the_end_says_so() -> None:
    Path("mine/algorithm").mkdir(parents=True)
    Path("mine/algorithm/mine.yaml").write_text(f"_target_: {__name__}.HasNoModel\n")
    words = [*SMALL, "algorithm=mine", "study=personal_steps", "study.steps=2", "train.rounds=1"]
    with pytest.raises(UserError, match="starts from the global model, and this method has none"):
        pflsweep.run(words, "mine")


def test_ala_on_another_method_can_be_looked_at() -> None:
    table = run("algorithm=fedprox", "ala=on", "study=weight_learning", "study.client=3", "study.curves=2").record.study
    assert sorted(set(table["round"])) == [2, 6]
    assert torch.isfinite(torch.tensor(table["loss"].to_numpy())).all()
