"""From a command to a plan: its groups, slots and configs, and its id."""

import itertools
import json
import math
import re
from collections import Counter
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from pflsweep.config.compose import compose, is_of_sweep
from pflsweep.config.hydra_loader import load, search_path, sweep_values_of
from pflsweep.config.keys import as_override, flat
from pflsweep.config.schema import check
from pflsweep.sweep import cost, planner
from pflsweep.sweep.command import check_command
from pflsweep.sweep.plan import Plan, Slot, changed, plan_id, read_plan, write_plan
from pflsweep.sweep.planner import _versions
from pflsweep.sweep.search_space import Axis, grid_points, params_of, parse_axis
from pflsweep.sweep.spec import read_table
from pflsweep.util.errors import UserError
from pflsweep.util.once import warn_once

pytestmark = pytest.mark.usefixtures("elsewhere")


def planned(*words: str, calls: Counter | None = None) -> Plan:
    """Return the plan of `pflsweep -m`. calls: counts what is composed."""
    own = [word for word in words if is_of_sweep(word)]
    command = check_command(sweep_values_of(load(own, search_path(None))))
    if command.sweep and (search := read_table(command.sweep).search):
        command = check_command(sweep_values_of(load([*search, *own], search_path(None))))

    def counted(overrides: list[str]) -> Any:
        if calls is not None:
            calls[" ".join(overrides)] += 1
        return compose(overrides)

    return planner.build(command, words, counted, OverridesParser.create(), "test")


def trials(plan: Plan) -> list[dict[str, Any]]:
    return [flat(config.values) for slot in plan.slots for config in plan.configs(slot, {})]


def test_a_product_in_order_with_seeds_and_labels() -> None:
    plan = planned("algorithm=fedavg,local", "seed=2,0", "train.lr=0.1,0.5", "partition=iid,dirichlet", "train.batch=8")
    assert [(group.method, group.setting) for group in plan.groups] == [
        (method, f"partition={partition} train.lr={lr}")
        for method in ("fedavg", "local")
        for partition in ("iid", "dirichlet")
        for lr in (0.1, 0.5)
    ]
    assert plan.seeds == [2, 0]
    assert list(plan.slots) == [Slot(g, True, k) for g in range(8) for k in (0, 1)]
    assert plan.title(Slot(1, True, 0), {}) == "fedavg partition=iid train.lr=0.5 seed=2"
    assert [found["seed"] for found in trials(plan)] == [2, 0] * 8
    assert {found["train.batch"] for found in trials(plan)} == {8}


def test_a_trial_is_called_by_keys_that_tell_its_values_apart() -> None:
    plan = planned("algorithm=fedavg")
    point = {"train.lr": 0.1, "algorithm.lr": 0.25}
    assert plan.title(Slot(0, True, 0), point) == "fedavg train.lr=0.1 algorithm.lr=0.25 seed=0"
    assert plan.title(Slot(0, True, 0), {"train.lr": 0.1}) == "fedavg lr=0.1 seed=0"


def test_plug_ins_are_part_of_a_method() -> None:
    plan = planned("ala=none,on", "attack=none,scaled")
    assert [group.name for group in plan.groups] == ["fedavg", "fedavg+scaled", "fedavg+ala", "fedavg+ala+scaled"]


@pytest.mark.slow
def test_copies_are_what_composing_would_give_and_options_are_composed_once() -> None:
    calls: Counter = Counter()
    plan = planned(
        *("algorithm=fedprox,pgfed", "algorithm.mu=0.1,1", "seed=0,3", "data.limit=null,500"),
        "metrics.trained=true,false", "+setting=pgfed", "partition.clients=50", calls=calls,
    )  # fmt: skip
    # Composed once for each of two methods and two kinds of limits
    assert sorted(calls.values()) == [1] * 4
    assert len(plan.groups) == 16
    for slot in plan.slots:
        (config,) = plan.configs(slot, {})
        values = flat(config.values)
        keys = ("algorithm.mu", "data.limit", "metrics.trained", "seed")
        words = [f"{key}={as_override(values[key])}" for key in keys]
        fresh = compose(["+setting=pgfed", "partition.clients=50", f"algorithm={config.choices['algorithm']}", *words])
        assert (values, config.defaults) == (flat(fresh.values), fresh.defaults)


def test_what_a_command_sweeps_is_not_searched_nor_scaled_whatever_its_values(tmp_path: Path) -> None:
    (tmp_path / "sweeps/space").mkdir(parents=True)
    (tmp_path / "sweeps/space/pfedme.yaml").write_text("algorithm.eval: {grid: [theta, w]}\ntrain.lr: {grid: [1, 2]}\n")
    plan = planned("algorithm=pfedme", "algorithm.eval=theta,w", "tune=grid")
    assert [(g.setting, list(g.space), g.search_slot_count) for g in plan.groups] == [
        ("algorithm.eval=theta", ["train.lr"], 2),
        ("algorithm.eval=w", ["train.lr"], 2),
    ]
    plan = planned("algorithm=local", "data.limit=null,500", "scale=smoke")
    assert [g.config.values["data"]["limit"] for g in plan.groups] == [None, 500]


def test_the_last_word_of_a_key_counts() -> None:
    plan = planned(
        "train.lr=0.1,0.2", "algorithm=fedavg,local", "seed=0,1", "train.lr=0.3", "algorithm=local", "seed=2"
    )
    assert [(g.method, g.config.values["train"]["lr"]) for g in plan.groups] == [("local", 0.3)]
    assert plan.seeds == [2]
    plan = planned("train.lr=0.3", "train.lr=0.1,0.2", "algorithm=local", "algorithm=fedavg,fedprox")
    assert [(g.method, g.config.values["train"]["lr"]) for g in plan.groups] == [
        (method, lr) for method in ("fedavg", "fedprox") for lr in (0.1, 0.2)
    ]


def test_what_a_row_sets_is_not_searched_for_it_unless_the_file_says_how(tmp_path: Path) -> None:
    (tmp_path / "sweeps").mkdir()
    (tmp_path / "sweeps/own.yaml").write_text(
        "settings: {digits: dataset=digits}\n"
        "methods: {pinned: algorithm=fedprox algorithm.mu=1.0, own: algorithm=fedprox algorithm.mu=1.0}\n"
        "space: {own: {algorithm.mu: {grid: [0.5, 2.0]}}}\n"
        "search: tune=grid\n"
    )
    spaces = {
        group.method: {key: axis.grid for key, axis in group.space.items()} for group in planned("sweep=own").groups
    }
    assert list(spaces["pinned"]) == ["train.lr"]
    assert spaces["own"]["algorithm.mu"] == [0.5, 2.0]


@pytest.mark.slow
def test_a_search_at_another_scale_tries_what_that_scale_tries(tmp_path: Path) -> None:
    (tmp_path / "sweeps/scale").mkdir(parents=True)
    (tmp_path / "sweeps/scale/tiny.yaml").write_text("images: 7000\npoints: 2\nseeds: 1\nset: {train.batch: 7}\n")
    (tmp_path / "sweeps/own.yaml").write_text(
        "settings: {digits: train.rounds=50 train.eval_every=20 train.participation=1 partition.test_fraction=0.25}\n"
        "methods: {prox: algorithm=fedprox algorithm.mu=1.0, other: algorithm=fedprox}\n"
        "seeds: [3, 4, 5]\n"
        "search: tune=grid tune.seeds=2\n"
        "scales:\n"
        "  small:\n"
        "    methods: {prox: algorithm=fedprox algorithm.mu=2.0}\n"
        "    space: {all: {train.lr: {grid: [1, 2, 3]}}}\n"
    )  # fmt: skip

    def search_trials(plan: Plan) -> list[dict[str, Any]]:
        slots = [slot for slot in plan.slots if not slot.final]
        return [flat(config.values) for slot in slots for config in plan.configs(slot, plan.known_point(slot))]

    def final(plan: Plan) -> list[dict[str, Any]]:
        return [flat(config.values) for slot in plan.slots if slot.final for config in plan.configs(slot, {})]

    both, rounds = planned("sweep=own", "scale=30", "tune.scale=tiny"), planned("sweep=own", "scale=30")
    tiny = planned("sweep=own", "scale=tiny", "seed=3,4")
    assert search_trials(both) == search_trials(tiny)
    assert final(both) == final(rounds)
    assert len(search_trials(both)) == 2 * 2 * 2, "rows, points, tuning seeds"
    keys = ("train.rounds", "train.eval_every", "train.batch", "algorithm.mu", "seed")
    tried, trained = search_trials(both)[0], final(both)[0]
    images = round(1797 * 0.75) * tried["train.epochs"]
    assert [tried[key] for key in keys] == [7000 // images, 7000 // images, 7, 2.0, 3]
    assert [trained[key] for key in keys] == [30, 15, 32, 1.0, 3]  # 15 divides 30
    assert (both.scale, both.tune.scale, both.seeds) == ("30", "tiny", [3, 4, 5])
    write_plan(both, tmp_path / "plan.json")
    assert read_plan(tmp_path / "plan.json") == both
    assert len({both.id, rounds.id, tiny.id}) == 3
    assert planned("sweep=own", "scale=30", "tune.scale=30").id == rounds.id


def test_a_search_of_values_that_others_follow_is_another() -> None:
    search = ("algorithm=pfedme", "tune=grid", "tune.points=2")
    fixed, follows = (planned(f"algorithm.inner_lr={lr}", *search) for lr in ("0.05", "${train.lr}"))
    assert fixed.groups[0].config.values == follows.groups[0].config.values
    assert fixed.id != follows.id


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["tune.points=3"], "tune.points=3: nothing is searched. Add how, as in tune=grid."),
        (["algorithm=fedavg,local", "tune=grid", "tune.view=global"], "tune.view is global, but local has no global"),
        (["tune=grid", "data.validation=0.5"], "a search holds tune.validation back"),
    ],
)
def test_words_of_a_search_that_would_not_count_are_refused(words: list[str], said: str) -> None:
    with pytest.raises(UserError, match=re.escape(said)):
        planned(*words)


@pytest.mark.parametrize("word", ["paths.runs=a,b", "device=cpu,auto", "train.chunk=1,2", "tracking.every=1,2"])
def test_a_key_that_changes_no_trial_is_not_swept(word: str) -> None:
    """Each value would be the same trial: once it was trained in two folders."""
    with pytest.raises(UserError, match=f"{word.partition('=')[0]} has several values, but it says how a trial runs"):
        planned(word)


def test_data_in_several_files_are_swept() -> None:
    """Which file is not part of a trial's identity, but the rows in it are."""
    for name in "ab":
        Path(f"{name}.csv").write_text("x,label\n" + f"{ord(name)},0\n{ord(name)},1\n" * 50)
    plan = planned(
        "dataset=csv", "dataset.label=label", "dataset.path=a.csv,b.csv", "partition=iid", "partition.clients=2"
    )
    assert [group.config.values["dataset"]["path"] for group in plan.groups] == ["a.csv", "b.csv"]


def test_the_view_is_there_for_a_method_of_which_nothing_is_searched() -> None:
    with pytest.raises(UserError, match=r"tune\.view is global, but local has no global model"):
        planned("algorithm=fedavg,local", "tune=grid", "tune.view=global", "train.lr=0.1")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["scale=small", "train.epochs=abc"], "train.epochs"),
        (["scale=small", "train.participation=abc"], "train.participation"),
        (["scale=small", "partition.clients=abc"], "partition.clients"),
        (["scale=small", "data.validation=abc"], "data.validation"),
        (["scale=small", "~train.epochs"], "train.epochs"),
        (["dataset.test_fraction=abc"], "dataset.test_fraction"),
        (["~seed"], "seed"),
        (["tune=grid", "~metrics.trained", "tune.view=trained"], "metrics.trained"),
    ],
)
def test_values_are_checked_before_anything_counts_with_them(words: list[str], said: str) -> None:
    with pytest.raises(UserError, match=re.escape(said)):
        planned(*words)


@pytest.mark.slow
def test_a_table_is_composed_once_for_each_combination_of_options() -> None:
    calls: Counter = Counter()
    table = read_table("pgfed/table1")
    plan = planned("sweep=pgfed/table1", "only=[local,pgfed,pgfedmo]", calls=calls)
    assert [(group.setting, group.method) for group in plan.groups] == [
        (setting, method) for setting in table.settings for method in ("local", "pgfed", "pgfedmo")
    ]
    # For 18 cells, composed once for each of three methods and two datasets
    assert sorted(calls.values()) == [1] * 6
    for group in plan.groups:
        assert group.config == compose([*table.settings[group.setting], *table.methods[group.method]])
    assert [group.search_slot_count for group in plan.groups[:3]] == [4, 20, 60]
    assert plan.seeds == [0, 1, 2]


def test_composing_many_cells_reports_progress(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(planner, "REPORTED", 2)
    planned("sweep=benchmark", "only=[digits/pat2,fedavg,ditto,local,fedper,fedrep]")
    lines = [f"benchmark: composed the configs of {number} of 5 cells" for number in (2, 4)]
    assert capsys.readouterr().err.splitlines() == lines


def test_what_refers_to_another_key_follows_it() -> None:
    """A key that refers to a swept number, a searched one or the seed has the value that composing each trial would
    give.
    """
    links = ["algorithm.mu=${train.lr}", "paths.runs=runs${seed}", "train.weight_decay=${.momentum}"]
    plan = planned("algorithm=fedprox", *links, "train.lr=0.5,0.25", "seed=1,2", "train.momentum=0.5")
    found = [(each["train.lr"], each["algorithm.mu"], each["paths.runs"]) for each in trials(plan)]
    assert found == [(lr, lr, f"runs{seed}") for lr in (0.5, 0.25) for seed in (1, 2)]
    assert {each["train.weight_decay"] for each in trials(plan)} == {0.5}
    config = plan.groups[0].config
    assert flat(changed(config, {"train.lr": 3.0, "algorithm.mu": 4.0}).values)["algorithm.mu"] == 4.0
    again = changed(changed(config, {"algorithm.mu": 4.0}), {"train.lr": 3.0})
    assert flat(again.values)["algorithm.mu"] == 4.0


def test_searches_come_first_and_hold_validation_data_back() -> None:
    plan = planned("algorithm=fedprox,local", "seed=5,6,7", "tune=grid", "tune.seeds=2", "tune.validation=0.3")
    first, second = plan.groups
    assert (first.search_slot_count, second.search_slot_count) == (len(first.points), len(second.points))
    assert first.points == grid_points(first.space)
    searches = [Slot(0, False, k) for k in range(first.search_slot_count)] + [
        Slot(1, False, k) for k in range(second.search_slot_count)
    ]
    assert list(plan.slots) == [*searches, *(Slot(g, True, k) for g in (0, 1) for k in (0, 1, 2))]
    point = first.points[3]
    tried = plan.configs(Slot(0, False, 3), point)
    assert [(each.values["seed"], each.values["data"]["validation"]) for each in tried] == [(5, 0.3), (6, 0.3)]
    assert all(flat(each.values)[key] == value for each in tried for key, value in point.items())
    (final,) = plan.configs(Slot(0, True, 2), point)
    assert (final.values["seed"], final.values["data"]["validation"]) == (7, 0.0)
    test = planned("algorithm=fedprox", "tune=grid", "tune.split=test")
    assert {each["data.validation"] for each in trials(test)} == {0.0}


def test_a_key_that_the_command_sets_is_not_searched() -> None:
    assert set(planned("algorithm=pgfedmo", "tune=grid").groups[0].space) == {
        *("train.lr", "algorithm.mu", "algorithm.beta")
    }
    plan = planned("algorithm=pgfedmo", "tune=grid", "algorithm.mu=0.3", "train.lr=0.1,0.2")
    assert [set(group.space) for group in plan.groups] == [{"algorithm.beta"}] * 2
    (group,) = planned("sweep=pgfed/table1", "only=[pgfed,*10/clients50]", "algorithm.mu=0.3").groups
    assert set(group.space) == {"train.lr"}
    assert group.config.values["algorithm"]["mu"] == 0.3


def test_a_row_that_searches_nothing_is_trained_alone_too(tmp_path: Path) -> None:
    """A page's command for missing cells names such rows with `only`."""
    table = "settings: {a: partition=iid}\nmethods: {f: algorithm=fedavg, l: algorithm=local}\nsearch: tune=grid\n"
    (tmp_path / "mine.yaml").write_text(f"{table}space: {{f: null}}\n")
    plan = planned(f"sweep={tmp_path}/mine.yaml", "only=[f]")
    assert [(slot.final, plan.title(slot, {})) for slot in plan.slots] == [(True, "f a seed=0")]
    (tmp_path / "mine.yaml").write_text(f"{table}space: {{all: {{train.lr: null}}}}\n")
    with pytest.raises(UserError, match="tune=grid has nothing to search"):
        planned(f"sweep={tmp_path}/mine.yaml")


def test_a_partition_with_validation_rows_is_refused_before_a_search_on_such_rows() -> None:
    rows = {"train": [[0, 1], [2, 3]], "test": [[4], [5]], "validation": [[6], [7]]}
    Path("split.json").write_text(json.dumps(rows))
    words = ["tune=grid", "partition=from_file", "partition.path=split.json"]
    with pytest.raises(UserError, match=r"partition has some as well: .* A search draws its own \(tune\.validation\)"):
        planned(*words)
    assert planned(*words, "tune.split=test").groups[0].search_slot_count > 1
    Path("split.json").write_text(json.dumps({**rows, "validation": [[], []]}))
    assert planned(*words).groups[0].search_slot_count > 1


@pytest.mark.slow
def test_the_seed_of_the_command_comes_before_the_files() -> None:
    only = "only=[local,cifar10/clients25]"
    assert planned("sweep=pgfed/table1", only).seeds == [0, 1, 2]
    assert planned("sweep=pgfed/table1", only, "seed=7").seeds == [7]
    assert planned("sweep=pgfed/table1", only, "seed=7,8,7").seeds == [7, 8]
    assert planned("seed=4").seeds == [4]


SAME = ["algorithm=fedprox", "train.lr=0.1,0.2", "seed=0,1", "tune=grid"]


@pytest.mark.parametrize(
    "words",
    [
        ["paths.runs=elsewhere"],
        ["device=cpu", "train.threads=1", "train.chunk=3"],
        ["data.root=/nowhere", "data.download=true"],
        ["tracking=none", "checkpoint.every=0"],
        ["workers.count=4", "workers.heartbeat=1", "retry=true", "plan=true"],
        # Keys of a feature that is switched off
        ["data.shuffle=3", "train.sampling_alpha=2"],
        # The default value
        ["train.rounds=30"],
    ],
)
def test_the_id_is_that_of_the_trials(words: list[str]) -> None:
    assert planned(*SAME, *words).id == planned(*words[::-1], *SAME).id == planned(*SAME).id


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ["train.rounds=29"],
        ["seed=0,2"],
        ["seed=0"],
        ["train.lr=0.1"],
        ["algorithm=pgfed"],
        ["tune=none"],
        ["tune.points=3"],
        ["tune.split=test"],
        ["tune=random", "tune.points=20"],
        ["tune.seeds=2"],
        ["tune.round=best"],
        ["tune.view=global"],
        ["tune.validation=0.3"],
        ["scale=smoke"],
        ["partition.alpha=0.5"],
        ["ala=on"],
    ],
)
def test_the_id_of_other_trials_is_another(words: list[str]) -> None:
    keys = {word.partition("=")[0] for word in words}
    rest = [word for word in SAME if word.partition("=")[0] not in keys]
    assert planned(*rest, *words).id != planned(*SAME).id


def test_the_id_depends_on_data_of_ones_own() -> None:
    words = ("dataset=csv", "dataset.label=label", "partition=iid")
    ids = []
    for name, labels in (("a.csv", 2), ("b.csv", 2), ("b.csv", 3)):
        Path(name).write_text("x,label\n" + "\n".join(f"{k},{k % labels}" for k in range(90)))
        ids.append(planned(*words, f"dataset.path={name}").id)
    assert ids[0] == ids[1] != ids[2]


def test_the_id_depends_on_references_that_move_between_trials() -> None:
    """To the seed, to a searched key by another name, and through another key."""
    lr = compose([]).flat["train.lr"]
    for first, second in [
        (["seed=0,1", "partition.seed=0"], ["seed=0,1", "partition.seed=${seed}"]),
        (["seed=0,1", "data.shuffle=0"], ["seed=0,1", "partition.seed=${seed}", "data.shuffle=${partition.seed}"]),
        (["tune=grid", f"train.weight_decay={lr}"], ["tune=grid", "train.weight_decay=${.lr}"]),
    ]:
        targets = ["algorithm=fedavg", "data.targets=permuted"]
        assert planned(*targets, *first).id != planned(*targets, *second).id
    assert planned("seed=0", "partition.seed=0").id == planned("seed=0", "partition.seed=${seed}").id, "one seed"


def test_the_id_depends_on_each_seeds_file() -> None:
    def write_rows(name: str, first: int) -> None:
        rows = {"train": [[first], [first + 1]], "test": [[100], [101]]}
        Path(name).write_text(json.dumps(rows))

    words = ["dataset=digits", "partition=from_file", "partition.path=p${seed}.json"]
    write_rows("p0.json", 0)
    write_rows("p1.json", 2)
    before = {seeds: planned(*words, f"seed={seeds}").id for seeds in ("0,1", "0")}
    write_rows("p1.json", 4)
    after = {seeds: planned(*words, f"seed={seeds}").id for seeds in ("0,1", "0")}
    assert before["0"] == after["0"]
    assert before["0,1"] != after["0,1"]


def test_the_id_depends_on_the_file_of_an_option_of_ones_own(tmp_path: Path) -> None:
    (tmp_path / "partition").mkdir()
    (tmp_path / "partition/mine.yaml").write_text(f"_target_: {cost.FROM_FILE}\nseed: null\npath: p.json\n")
    found = []
    for row in (0, 1):
        Path("p.json").write_text(json.dumps({"train": [[row], [2]], "test": [[100], [101]]}))
        cost.clear_caches()
        found.append(cost.partition_size(compose(["dataset=digits", "partition=mine"], tmp_path)).checksum)
    assert found[0] != found[1]


def test_a_short_scale_evaluates_its_last_round_as_a_longer_one_does() -> None:
    config = compose(["train.rounds=20", "train.eval_every=10"])
    every = {rounds: cost.limit_rounds(config, rounds).train.eval_every for rounds in (20, 15, 12, 10, 7, 6)}
    assert every == {20: 10, 15: 5, 12: 6, 10: 10, 7: 7, 6: 6}


def test_the_id_is_that_of_before_there_were_younger_keys() -> None:
    plan = planned(*SAME)
    before = [group._replace(config=deepcopy(group.config)) for group in plan.groups]
    for group in before:
        del group.config.values["train"]["precision"], group.config.values["study"]
    code = [_versions(group.config, plan.seeds, own) for group, own in zip(plan.groups, plan.code, strict=True)]
    assert plan_id(before, plan.seeds, plan.tune, code) == plan.id != planned(*SAME, "train.precision=bf16").id


def test_the_id_changes_with_a_methods_version(monkeypatch: pytest.MonkeyPatch) -> None:
    from pflsweep.algorithms.fedprox import FedProx

    before = planned(*SAME).id
    monkeypatch.setattr(FedProx, "version", FedProx.version + 1)
    assert planned(*SAME).id != before


def test_rows_that_train_the_same_trials_are_named(caplog: pytest.LogCaptureFixture) -> None:
    Path("sweeps").mkdir()
    rows = "{a row: algorithm=fedavg, its twin: algorithm=fedavg, another: algorithm=fedavg train.lr=0.3}"
    Path("sweeps/mine.yaml").write_text(f"settings: {{a: partition=iid, b: partition=shards}}\nmethods: {rows}\n")
    planned("sweep=mine")
    assert [record.getMessage() for record in caplog.records] == [
        "rows 'a row' and 'its twin' are the same trials: comparisons show one of them"
    ]


def test_a_key_is_warned_about_that_no_trial_of_the_sweep_needs(caplog: pytest.LogCaptureFixture) -> None:
    warn_once.cache_clear()
    planned("algorithm=fedavg,local", "train.participation=1,0.5", "train.first_round=all", "data.new_epochs=3")
    assert [record.getMessage() for record in caplog.records] == [
        "data.new_epochs has no effect here: it needs data.new above 0"
    ]


def test_a_plan_is_read_as_it_was_written(tmp_path: Path) -> None:
    Path("sweeps").mkdir()
    Path("sweeps/mine.yaml").write_text(
        "settings: {a b: 'train.lr=1e-5', ü: 'model.hidden=[5,7] data.root=\"a b\" algorithm.mu=${train.lr}'}\n"
        "methods: {m: algorithm=fedprox}\nsearch: tune=grid\nspace: {m: {\n"
        "  algorithm.mu: {grid: [0, 1.5, 1.0e-7], range: [0, 2], log: false}, model.hidden: {grid: [[5], [6, 7]]},\n"
        "  partition.least: {grid: [1, 2], log: true}, train.weights: {grid: [share, uniform]},\n"
        "  data.limit: {grid: [null, 50]}, metrics.subset: {grid: [0.5]}, data.download: {grid: [true, false]}}}\n"
    )
    for words in (["sweep=mine", "seed=3,1"], ["sweep=mine", "tune=tpe", "tune.points=3"], ["algorithm=local"]):
        plan = planned(*words)
        write_plan(plan, tmp_path / "plan.json")
        again = read_plan(tmp_path / "plan.json")
        assert again == plan
        assert list(again.slots) == list(plan.slots)
        for group, other in zip(plan.groups, again.groups, strict=True):
            # By repr, since 1 has to stay 1 and not become 1.0
            assert repr(other) == repr(group)
            assert [axis.distribution for axis in other.space.values()] == [
                axis.distribution for axis in group.space.values()
            ]


@pytest.mark.slow
@pytest.mark.parametrize(("table", "only"), [("pgfed/table1", "[pgfed,local]"), ("fedfomo/table1", "[fedfomo_n5]")])
def test_scales(table: str, only: str) -> None:
    whole, small, smoke = (
        planned(f"sweep={table}", f"only={only}", f"scale={scale}") for scale in ("paper", "small", "smoke")
    )
    kept = ("partition", "data", "model", "dataset", "algorithm")
    for paper, fewer, least in zip(whole.groups, small.groups, smoke.groups, strict=True):
        assert paper.name == fewer.name
        assert all(point in paper.points for point in fewer.points)
        assert len(fewer.points) in ((0,) if table == "fedfomo/table1" else (2, 4))
        rounds = fewer.config.values["train"]["rounds"]
        assert 1 <= rounds <= paper.config.values["train"]["rounds"]
        assert cost.images_a_trial(fewer.config) <= 1_500_000
        more = changed(fewer.config, {"train.rounds": rounds + 1})
        assert cost.images_a_trial(more) > 1_500_000 or rounds == paper.config.values["train"]["rounds"]
        assert all(fewer.config.values[group] == paper.config.values[group] for group in kept)
        train, cut = paper.config.values["train"], fewer.config.values["train"]
        assert {k for k in train if train[k] != cut[k]} <= {"rounds", "eval_every"}
        assert cut["eval_every"] <= cut["rounds"]
        assert least.config.values["data"]["limit"] == 6000
        assert least.config.values["train"]["participation"] == train["participation"]
        assert least.config.values["partition"]["clients"] == paper.config.values["partition"]["clients"]
        assert cost.images_a_trial(least.config) <= 12_000 or least.config.values["train"]["rounds"] == 1
        assert least.search_slot_count == min(2, paper.search_slot_count)
        assert all(point in paper.points for point in least.points)
    assert (whole.seeds, small.seeds, smoke.seeds) == ([0, 1, 2], [0, 1], [0])


@pytest.mark.parametrize(
    "word", ["sweep=pgfed/table1,pgfed/table2", "tune=grid,random", "scale=smoke,small", "plan=true,false"]
)
def test_a_key_of_the_sweep_has_one_value(word: str) -> None:
    with pytest.raises(UserError, match="has several values, but a sweep has one"):
        planner.build(
            check_command(sweep_values_of(load([], search_path(None)))), [word], compose, OverridesParser.create(), ""
        )


def test_a_view_that_is_not_scored_is_refused_before_anything_runs() -> None:
    with pytest.raises(UserError, match=r"scored with metrics\.trained=true alone"):
        planned("tune=grid", "tune.view=trained")
    assert planned("tune=grid", "tune.view=trained", "metrics.trained=true").tune.view == "trained"


def test_what_a_command_says_is_not_scaled() -> None:
    (group,) = planned("scale=smoke", "train.epochs=5", "train.rounds=40", "seed=5,6").groups
    assert (group.config.values["train"]["epochs"], group.config.values["train"]["rounds"]) == (5, 40)
    assert planned("scale=smoke", "train.epochs=5", "seed=5,6").seeds == [5, 6]
    (group,) = planned("scale=smoke").groups
    assert (group.config.values["train"]["epochs"], group.config.values["train"]["rounds"]) == (1, 17)


def test_a_single_round_is_left_where_one_is_more_than_the_scale() -> None:
    config = cost.limit_images(compose(["+setting=fedpg", "train.participation=1.0"]), 100)
    assert (config.values["train"]["rounds"], config.values["train"]["eval_every"]) == (1, 1)
    check(config)


def test_rows_and_columns_are_chosen_by_pattern() -> None:
    table = read_table("fedala/table4")
    few = planner.select(table, ["*_ala", "fedavg", "cifar100/*"])
    assert {row for _, row in few.cells} == {*(row for row in table.methods if row.endswith("_ala")), "fedavg"}
    assert {column for column, _ in few.cells} == {column for column in table.settings if column.startswith("cifar100")}
    assert ("cifar100/clients50", "fedavg") in few.cells
    assert ("cifar100/clients50", "fedavg_ala") not in few.cells
    assert planner.select(table, []) == table
    with pytest.raises(UserError, match="runs none of these rows in these columns"):
        planner.select(table, ["fedavg_ala", "agnews/*"])


def test_points_of_a_limited_grid_are_spread_over_it() -> None:
    space = {"a": Axis([1, 2, 3], None, False, ""), "b": Axis([4, 5], None, False, "")}
    assert grid_points(space)[:3] == [{"a": 1, "b": 4}, {"a": 1, "b": 5}, {"a": 2, "b": 4}]
    assert grid_points(space, 1) == [{"a": 1, "b": 4}]
    large = {key: space["a"]._replace(grid=list(range(101))) for key in "abc"}
    with pytest.raises(UserError, match=r"tune=grid: 1,030,301 combinations \(101 of a, .*tune=random"):
        grid_points(large, 10)
    assert grid_points(space, 9) == grid_points(space)
    assert parse_axis("k", {"grid": [1]}, "f").range is None
    assert params_of({"k": parse_axis("k", {"grid": [[1, 2], [3]]}, "f")}, {"k": [3]}) == {"k": "[3]"}


@pytest.mark.parametrize(
    ("sizes", "count"),
    [((4, 3), 3), ((4, 3), 8), ((4, 3), 11), ((3, 2), 2), ((5,), 3), ((1, 4, 3), 8), ((4, 3, 5), 20), ((7, 2), 8)],
)
def test_values_of_a_limited_grid_are_tried_equally_often_and_crossed(sizes: tuple[int, ...], count: int) -> None:
    """Every k-th point of a grid of 4 and 3 values would leave one of the 3 out."""
    space = {f"a{size}{k}": Axis(list(range(size)), None, False, "") for k, size in enumerate(sizes)}
    points = grid_points(space, count)
    assert len({tuple(point.values()) for point in points}) == count
    assert points == sorted(points, key=lambda point: tuple(point.values()))
    for key, axis in space.items():
        tried = Counter(point[key] for point in points)
        assert len(tried) == min(count, len(axis.grid))
        assert max(tried.values()) - min(tried.values()) <= 1
        assert {0, len(axis.grid) - 1} <= tried.keys(), "the ends of each axis are among them"
    for (a, one), (b, two) in itertools.combinations(space.items(), 2):
        together = Counter((point[a], point[b]) for point in points)
        cells = min(count, len(one.grid)) * min(count, len(two.grid))
        assert max(together.values()) <= math.ceil(count / cells) + (count > cells)


def test_there_are_never_more_workers_than_trials() -> None:
    assert planned("seed=0,1", "workers.count=1000").workers.count == 2
    assert planned("seed=0,1", "workers.count=1").workers.count == 1


def test_trials_of_several_numbers_of_rounds_are_evaluated_at_each(tmp_path: Path) -> None:
    """They share a record, whichever is trained first."""
    plan = planned("train.rounds=30,5", "train.eval_every=10")
    assert [(group.config.train.rounds, group.config.train.eval_every) for group in plan.groups] == [(30, 5), (5, 5)]
    (tmp_path / "mine.yaml").write_text(
        "settings: {a: partition.clients=5}\nmethods: {fedavg: algorithm=fedavg}\n"
        "space: {fedavg: {train.lr: null, train.rounds: {grid: [30, 5]}}}\n"
    )
    (group,) = planned(f"sweep={tmp_path}/mine.yaml", "tune=grid", "train.eval_every=20").groups
    assert group.search_config.train.eval_every == 5
    (group,) = planned(f"sweep={tmp_path}/mine.yaml", "tune=random", "tune.points=2", "train.eval_every=20").groups
    assert group.search_config.train.eval_every == 1
    (group,) = planned("train.rounds=7", "train.eval_every=10").groups
    assert group.config.train.eval_every == 10
    plan = planned("train.rounds=12,18", "train.eval_every=4")
    assert [group.config.train.eval_every for group in plan.groups] == [2, 2], "in rounds 4, 8 and 16 as well"


@pytest.mark.parametrize(
    "words", [["train.rounds=2,4"], ["tune=grid", "sweep=mine.yaml"], ["tune=hyperband", "algorithm=fedprox"]]
)
def test_new_clients_are_measured_after_one_number_of_rounds(words: list[str]) -> None:
    """Trials of several numbers of rounds share a record, which has new clients' scores after the last one alone."""
    Path("mine.yaml").write_text(
        "settings: {a: partition.clients=5}\nmethods: {fedavg: algorithm=fedavg}\n"
        "space: {fedavg: {train.lr: null, train.rounds: {grid: [30, 5]}}}\n"
    )
    with pytest.raises(UserError, match=r"data\.new with several numbers of rounds"):
        planned(*words, "data.new=2")


def test_trials_that_no_rounds_continue_may_have_new_clients_and_several_numbers_of_rounds() -> None:
    assert len(planned("algorithm=fedphp", "train.rounds=2,4", "data.new=2").groups) == 2


@pytest.mark.parametrize(("points", "tries"), [(1, 1), (3, 2)])
def test_a_search_has_no_more_points_than_command_and_scale_allow(points: int, tries: int) -> None:
    Path("sweeps/scale").mkdir(parents=True)
    Path("sweeps/scale/tiny.yaml").write_text("images: 7000\npoints: 2\nseeds: 1\n")
    (group,) = planned("algorithm=fedavg", "tune=grid", "scale=tiny", f"tune.points={points}").groups
    assert (group.search_slot_count, len(group.points)) == (tries, tries)
