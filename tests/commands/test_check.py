"""The conformance suite detects defects, and `pflsweep check` reports them."""

from pathlib import Path

import pytest
import torch

from pflsweep.algorithms.as_run.pfllib_perfedavg import PfllibPerFedAvg
from pflsweep.algorithms.fedavg import FedAvg
from pflsweep.commands import check
from pflsweep.commands.check import case_of, main, verdict
from pflsweep.conformance import properties as p
from pflsweep.conformance.case import Case, difference
from pflsweep.methods.protocol import Method, hyper
from pflsweep.util.errors import UserError
from pflsweep.util.once import warn_once
from tests import broken

CAUGHT: list[tuple[type[Method], p.Property, str]] = [
    (broken.WritesIntoDown, p.verbs_are_pure, "step writes into what it was given: Given.down.w"),
    (broken.TrainsWhatItWasSent, p.verbs_are_pure, "writes into what it was given: Given.down.w"),
    (broken.WritesIntoWork, p.verbs_are_pure, "step writes into what it was given: Work.w"),
    (broken.PersonalMovesTheServer, p.verbs_are_pure, "personal writes into what it was given: Server.w"),
    (broken.PersonalMovesTheServer, p.evaluation_changes_nothing, "after evaluation: server state 0"),
    (broken.OverwritesTheServer, p.verbs_are_pure, "aggregate writes into what it was given: Server.w"),
    (broken.OverwritesTheServer, p.absent_clients_stay, "client state 0 differs"),
    (broken.ReadsOldWork, p.old_work_is_dead, "NaN"),
    (broken.ReadsOldWork, p.any_chunking, "differs"),
    (broken.PersonalDraws, p.evaluation_changes_nothing, "of NumPy (or seeds it) in `personal`"),
    (broken.PersonalForgets, p.evaluation_changes_nothing, "evaluated twice"),
    (broken.IgnoresTheMask, p.padding_is_ignored, "batch.mask"),
    (broken.IgnoresTheMask, p.any_chunking, "differs"),
    (broken.IgnoresTheMask, p.any_chunking_with_noise, "differs"),
    (broken.TrainsOnTestRows, p.nothing_is_learnt_from_test_rows, "with other test rows"),
    (broken.LooksAtItsNeighbours, p.any_chunking, "in chunks of 2"),
    (broken.LooksAtItsNeighbours, p.stacking_changes_nothing, "trial 0 of three: personal models differs"),
    (broken.ReadsTheRateForAll, p.stacking_changes_nothing, "cannot be trained at once: RuntimeError"),
    (broken.DrawsFromTheGlobalGenerator, p.numbers_follow_the_seed, "random.uniform(random.own(batch.key), shape)"),
    (broken.SeedsTheGlobalGenerator, p.numbers_follow_the_seed, "of PyTorch (or seeds it) while a client trains"),
    (broken.DrawsOnTheServer, p.numbers_follow_the_seed, "of PyTorch (or seeds it) in `aggregate`"),
    (broken.DrawsLate, p.numbers_follow_the_seed, "training has drawn from a global generator"),
    (broken.KnowsClientZero, p.client_numbers_do_not_matter, "relabelled clients"),
    (
        broken.MakesItOnTheCpu,
        p.another_device_changes_nothing,
        "[5] is on the CPU and others are on another device (broken",
    ),
    (broken.WaitsForTheDevice, p.another_device_changes_nothing, "a CUDA graph cannot record it (broken"),
    (broken.KeepsAMemoryOfItsOwn, p.state_is_complete, "two rounds after loading a checkpoint"),
    (broken.KeepsAMemoryOfItsOwn, p.nothing_is_kept_elsewhere, "self.move changed in training"),
    (broken.KeepsAMemoryInItsClass, p.nothing_is_kept_elsewhere, "KeepsAMemoryInItsClass.derived changed in training"),
    (
        broken.TurnsDouble,
        p.single_precision_is_kept,
        "`aggregate` of TurnsDouble returned w of [89] float64: it must be [89] float32",
    ),
    (broken.TakesOneRateForAll, p.per_client_lr_in_any_chunking, "RuntimeError"),
    (broken.CountsInANumber, p.state_is_complete, "has to be a tensor"),
    (broken.SlowsTowardsTheLastRound, p.more_rounds_go_on, "Then set resumable = False"),
    (broken.SendsByChance, p.traffic_is_exact, "floats for each client in each round instead of ["),
    (broken.SendsWhatCannotBeCounted, p.traffic_is_exact, "SaysNothing has to be a Vector"),
    (broken.Ascends, p.hard_clients_are_survived, "training loss went from"),
    (broken.DividesByZero, p.hard_clients_are_survived, "NaN"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("cls", "property_", "words"), CAUGHT, ids=lambda v: getattr(v, "__name__", None))
def test_a_broken_method_is_caught(cls: type[Method], property_: p.Property, words: str) -> None:
    hyper = {"size": 0.5} if cls is broken.KeepsAMemoryInItsClass else {}
    assert words in verdict(property_, case_of(cls, hyper))


def test_every_property_catches_something() -> None:
    assert {property_ for _, property_, _ in CAUGHT} == set(p.PROPERTIES)


def test_a_promise_about_the_wire_is_held_against_the_method() -> None:
    assert "instead of [89, 89, 89]" in verdict(p.traffic_is_exact, case_of(FedAvg, {}, traffic=lambda sizes: sizes.P))
    assert verdict(p.traffic_is_exact, case_of(broken.SendsInTurns, {})) == ""


def test_a_method_may_read_test_rows_if_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    assert verdict(p.nothing_is_learnt_from_test_rows, case_of(PfllibPerFedAvg, {"adapt_on": "test"})) == ""
    monkeypatch.setattr(PfllibPerFedAvg, "reads_test_rows", "")
    assert "personal models" in verdict(
        p.nothing_is_learnt_from_test_rows, case_of(PfllibPerFedAvg, {"adapt_on": "test"})
    )


def test_infinities_hide_no_difference() -> None:
    """Methods may keep infinities as markers, such as the best loss of a client that was never sampled."""
    inf = float("inf")
    one = torch.tensor([inf, 1.0, -inf])
    assert difference(one, one, 1e-6) == ""
    assert difference(torch.tensor([inf, 1 + 1e-7, -inf]), one, 1e-6) == ""
    assert "differs by 1.0e+00" in difference(torch.tensor([inf, 2.0, -inf]), one, 1e-6)
    for other in ([inf, 1.0, inf], [1.0, inf, -inf], [inf, inf, -inf], [inf, 1.0, 0.0]):
        assert difference(torch.tensor(other), one, 1e-6) == "has infinity in other places"
    assert difference(torch.tensor([inf]), torch.tensor([-inf]), 1e-6) == "has infinity in other places"


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two properties, for tests of the command itself."""
    monkeypatch.setattr(check, "PROPERTIES", (p.verbs_are_pure, p.any_chunking))


def test_check_prints_a_line_for_each_property(few: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pflsweep.algorithms.fedavg.FedAvg"]) == 0
    title, *lines, last = capsys.readouterr().out.splitlines()
    assert title == "FedAvg: McMahan et al., AISTATS 2017"
    assert lines == ["ok      no verb writes into what it is given", "ok      " + str(p.any_chunking.__doc__)]
    assert last == "All 2 properties hold. A client exchanges 2 models (178 floats of 89) a round."


def test_check_fails_with_the_reason(few: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tests.broken.WritesIntoDown"]) == 1
    out = capsys.readouterr().out
    assert "FAILED  no verb writes into what it is given\n        step writes into" in out


def test_check_says_a_reason_once(few: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    def another(case: Case) -> None:
        """fails likewise"""
        p.verbs_are_pure(case)

    monkeypatch.setattr(check, "PROPERTIES", (p.verbs_are_pure, another))
    assert main(["tests.broken.WritesIntoDown"]) == 1
    out = capsys.readouterr().out
    assert out.count("step writes into") == 1
    assert "FAILED  fails likewise\n        for the same reason as above\n2 of 2 properties failed." in out


@pytest.mark.slow
@pytest.mark.parametrize(
    "argv",
    [
        ["fedprox"],
        ["fedprox", "mu=0.3"],
        # A class gets the values of the YAML file that names it
        ["pflsweep.algorithms.fedprox.FedProx"],
        # SCAFFOLD refuses momentum, so it is tested without
        ["scaffold"],
        ["tests.broken.NeedsAValue", "strength=1"],
    ],
    ids=" ".join,
)
def test_check_finds_hyperparameters(few: None, argv: list[str]) -> None:
    assert main(argv) == 0


def test_check_reads_a_folder_of_ones_own(few: None, tmp_path: Path) -> None:
    (tmp_path / "algorithm").mkdir()
    file = tmp_path / "algorithm" / "mine.yaml"
    file.write_text("_target_: tests.broken.NeedsAValue\nstrength: 0.5\n")
    assert main(["mine", "--config-dir", str(tmp_path)]) == 0
    assert main(["tests.broken.NeedsAValue", "--config-dir", str(tmp_path)]) == 0
    file.write_text("_target_: tests.broken.NeedsAValue\nstrength: 2.5\n")
    with pytest.raises(UserError, match=r"strength is 2\.5: it must be a number at least 0 and at most 1"):
        main(["mine", "--config-dir", str(tmp_path)])


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (
            ["nowhere.at_all.Method"],
            r"module 'nowhere\.at_all' cannot be imported: ModuleNotFoundError.*'nowhere'",
        ),
        (["tests.broken.WritesIntoUp"], r"'tests\.broken' has no 'WritesIntoUp'.*Did you mean"),
        (["../mine/methods.py"], r"'\.\./mine/methods\.py' is a file: name what is in it, as in methods\.Name"),
        (["tests.broken.SaysNothing"], "is not a method"),
        (["fedprox", "mu=[1"], "cannot be read as YAML"),
        (["fedavgg"], "no algorithm 'fedavgg'. Did you mean 'fedavg'"),
        (
            ["tests.broken.NeedsAValue"],
            r"NeedsAValue\.strength is missing \(how strongly it does nothing\): add key=VALUE",
        ),
        (["tests.broken.NeedsAValue", "strenght=1"], r"'NeedsAValue\.strenght'\. Did you mean 'NeedsAValue\.strength'"),
        (["tests.broken.NeedsAValue", "strength=much"], "strength is 'much': it must be a number"),
        (["fedprox", "mu"], "'mu' is not a hyperparameter of the form key=value"),
        (["fedavg", "--config-dir", "not_there"], "'not_there', which has no folder 'algorithm'"),
    ],
    ids=lambda v: " ".join(v) if isinstance(v, list) else "",
)
def test_bad_input_is_named(argv: list[str], words: str) -> None:
    with pytest.raises(UserError, match=words):
        main(argv)


def test_a_module_that_fails_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "halfdone.py").write_text("import torch\n1 / 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UserError, match="module 'halfdone' cannot be imported: ZeroDivisionError"):
        main(["halfdone.Mine"])


@pytest.mark.parametrize(
    ("cls", "words"),
    [
        (broken.SendsOneForAll, "`send` of SendsOneForAll returned [7, 89]: it must be ["),
        (broken.HasOnePersonalModel, "`personal` of HasOnePersonalModel returned [89]: it must be ["),
        (
            broken.ForgetsTheState,
            "`finish` of ForgetsTheState has to return a pair: what the clients send",
        ),
        (broken.CountsInFloat32, "state of [1, 3] of float64; by `init_client` it has to be [1, 3] of float32"),
        (broken.CountsInFloat32, "make tensors by w.new_zeros(...)"),
        (
            broken.ShowsAVector,
            "`show` of ShowsAVector returned [89] as 'model': it must be a tensor, [] to be",
        ),
        (broken.ShowsANumber, "`show` of ShowsANumber returned float as 'norm': it must be a tensor"),
    ],
)
def test_a_verb_that_returns_the_wrong_shape_or_type_is_named(cls: type[Method], words: str) -> None:
    assert words in verdict(p.evaluation_changes_nothing, case_of(cls, {}))


def test_missing_verbs_are_named_before_anything_runs() -> None:
    """Once each was found when the engine called it, maybe at the end of a round."""
    with pytest.raises(UserError, match="Unfinished has no send and no finish and no personal: a method defines each"):
        main(["tests.broken.Unfinished"])


def test_an_error_in_the_library_names_the_line_of_the_users_class(tmp_path: Path) -> None:
    (tmp_path / "crooked.py").write_text(
        "from pflsweep.algorithms.fedavg import FedAvg\n"
        "class Crooked(FedAvg):\n"
        "    def step(self, given, work, batch):\n"
        "        return work._replace(w=self.task.grad(work.w, batch))\n"
    )
    with pytest.MonkeyPatch.context() as patched:
        patched.syspath_prepend(str(tmp_path))
        said = verdict(p.absent_clients_stay, case_of(check.method_at("crooked.Crooked"), {}))
    assert said.endswith(", called from crooked.py, line 4)"), said


def test_a_class_without_its_decorator_is_named(capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(UserError, match=r"Bare\.mu is declared by hyper\(\), but Bare is not a dataclass: put @"):
        main(["tests.broken.Bare", "mu=1"])
    with pytest.raises(UserError, match=r"BareToo\.eta is declared, but BareToo is not a dataclass: put @"):
        main(["tests.broken.BareToo"])


def test_a_function_that_is_named_almost_as_a_verb_is_named(caplog: pytest.LogCaptureFixture) -> None:
    """The verb is the parent's then, and all properties hold."""
    warn_once.cache_clear()
    case_of(broken.Misspelt, {})
    assert [record.getMessage() for record in caplog.records] == [
        "Misspelt.agregate is no verb of a method. Did you mean `aggregate`?"
    ]


def test_hyper_takes_no_default() -> None:
    with pytest.raises(TypeError, match=r"takes no 'default'.* Defaults belong in the option's YAML file"):
        hyper("a key", default=0.1)
