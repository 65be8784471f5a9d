import json

import numpy as np
import pandas as pd
import pytest

from pflsweep.commands.main import main
from pflsweep.records.record import Record
from pflsweep.records.select import Chosen
from pflsweep.records.writer import RecordWriter
from pflsweep.report import frame, page, tables
from pflsweep.report.compare import SCORED, Row, check_baseline, settings
from pflsweep.report.quantities import client_accuracy, evaluated, summary
from pflsweep.report.tables import accuracy, brief, cost, others
from pflsweep.trial import tables as recorded
from pflsweep.util.errors import UserError
from tests.report.records import create, finished, train


def test_seeds_are_averaged_and_clients_paired(tmp_path):
    runs = [
        finished(tmp_path, "fedavg", [2, 4, 6, 8], seed=0),
        finished(tmp_path, "fedavg", [2, 2, 6, 6], seed=1),
        finished(tmp_path, "pgfed", [4, 6, 6, 8], seed=0),
        finished(tmp_path, "pgfed", [4, 4, 6, 10], seed=1),
    ]
    (setting,) = settings(runs)
    fedavg, pgfed = setting.rows
    assert fedavg.interval.mean == pytest.approx(0.45)
    assert fedavg.interval[1:] == (pytest.approx(0.4), pytest.approx(0.5), "range of 2 seeds")
    assert np.allclose(pgfed.gains(fedavg), [[0.2, 0.2, 0, 0], [0.2, 0.2, 0, 0.4]])
    table = accuracy(setting, setting.baseline("fedavg")).set_index("method")
    assert table.loc["fedavg", "last round"] == "45.00"
    assert table.loc["fedavg", "range of 2 seeds"] == "[40.00, 50.00]"
    assert table.loc["fedavg", "std over seeds"] == "7.07"
    assert table.loc["pgfed", "minus fedavg [range of 2 seeds]"] == "+15.00 [+10.00, +20.00]"
    assert table.loc["fedavg", "minus fedavg [range of 2 seeds]"] == "-"


def test_gains_pair_only_common_seeds(tmp_path):
    runs = [
        finished(tmp_path, "fedavg", [5, 5, 5, 5], seed=0),
        finished(tmp_path, "pgfed", [6, 6, 6, 6], seed=1),
    ]
    (setting,) = settings(runs)
    assert accuracy(setting, setting.rows[0]).loc[1, "minus fedavg"] == "no seed in common"


def test_rows_that_have_scored_no_client_in_common_have_no_gain(tmp_path):
    runs = [finished(tmp_path, "fedavg", [4, 6]), finished(tmp_path, "pgfed", [4, 6])]
    for record, client in zip(runs, (0, 1), strict=True):
        file = record.folder / "clients.parquet"
        table = pd.read_parquet(file)
        table.loc[table["client"] == client, ["n", "correct"]] = 0
        table.to_parquet(file)
    (setting,) = settings([Record(record.folder) for record in runs])
    assert setting.rows[1].gains(setting.rows[0]) == []
    assert accuracy(setting, setting.rows[0]).loc[1, "minus fedavg"] == "no client in common"


def test_a_client_that_one_of_two_methods_has_not_scored_has_no_gain(tmp_path):
    ours, theirs = (Row(name, [finished(tmp_path, name, n)]) for name, n in (("pgfed", [4, 6, 8]), ("fedavg", [2, 4])))
    assert np.allclose(ours.gains(theirs), [[0.2, 0.2]])
    assert np.allclose(theirs.gains(ours), [[-0.2, -0.2]])


def test_intervals_of_several_kinds_are_named_in_their_cells(tmp_path):
    runs = [
        *(finished(tmp_path, "fedavg", [4, 6, 6, 8], seed=seed) for seed in range(3)),
        *(finished(tmp_path, "pgfed", [6, 6, 6, 6], seed=seed) for seed in range(2)),
    ]
    (setting,) = settings(runs)
    assert brief(runs)["interval"].tolist() == ["[60.00, 60.00] 95% CI over 3 seeds", "[60.00, 60.00] range of 2 seeds"]
    table = accuracy(setting, setting.rows[0])
    assert table["minus fedavg [range of 2 seeds]"].tolist() == ["-", "+0.00 [+0.00, +0.00]"]


def test_settings_are_not_mixed(tmp_path):
    same = {"tracking__every": 9.0, "train__chunk": 2, "device": "cpu", "paths__runs": "elsewhere"}
    finished(tmp_path / "a", "fedavg", [5, 5, 5, 5])
    runs = [
        finished(tmp_path, "fedavg", [5, 5, 5, 5]),
        finished(tmp_path, "pgfed", [6, 6, 6, 6], **same),
        finished(tmp_path, "fedavg", [2, 2, 2, 2], train__lr=0.1),
        finished(tmp_path, "fedavg", [2, 2, 2, 2], partition__alpha=0.1),
    ]
    found = settings(runs)
    assert [[row.label for row in setting.rows] for setting in found] == [
        ["fedavg", "pgfed"],
        ["fedavg"],
        ["fedavg"],
    ]


@pytest.mark.parametrize("group", ["dataset", "partition", "model"])
def test_options_of_ones_own_part_settings_by_their_names(group, tmp_path):
    """Both are functions `build`, which is all that the config has of them."""
    own = {f"{group}___option_": "build"}
    runs = [finished(tmp_path, method, [5, 5, 5, 5], **own) for method in ("fedavg", "local")]
    assert len(settings(runs)) == 1
    file = runs[1].folder / "meta.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), group: "mine"}))
    assert len(settings([runs[0], Record(runs[1].folder)])) == 2


def test_more_rounds_of_one_trial_take_it_out_of_no_comparison(tmp_path):
    """FedAvg's seed 0 went on after round 3: it is compared as of round 3, too, with a line that says so."""
    runs = [finished(tmp_path, method, [4, 6, 6, 8], seed=seed) for method in ("fedavg", "local") for seed in (0, 1)]
    longer = RecordWriter(runs[0].folder)
    longer.add_session(
        {**longer.config, "train": {**longer.config["train"], "rounds": 4}},
        {"commit": "0", "version": "1", "environment": {}},
    )
    longer.begin()
    train(longer, [[9, 9, 9, 9]])
    longer.set_status(status="finished")
    first, second = settings([longer, *runs[1:]])
    short, long = (first, second) if len(first.rows) == 2 else (second, first)
    assert [(row.label, len(row.records)) for row in short.rows] == [("fedavg", 2), ("local", 2)]
    assert [(row.label, len(row.records)) for row in long.rows] == [("fedavg", 1)]
    assert short.rows[0].interval.mean == pytest.approx(0.6)
    assert long.rows[0].interval.mean == pytest.approx(0.9)
    (line,) = page._past(short.rows)
    assert line.endswith("after 3 of 4 rounds")
    text = page.write(Chosen([longer, *runs[1:]], []), tmp_path / "out", None).read_text()
    assert text.startswith("# Comparison of 4 finished runs"), "the trial that went on is one run"
    assert page._past(long.rows) == []


def test_a_finished_run_that_is_trained_further_stays_while_that_goes_on(tmp_path):
    """As of its last end, whatever interrupted it since. The page also names it among the unfinished ones."""
    runs = [finished(tmp_path, method, [4, 6, 6, 8]) for method in ("fedavg", "local")]
    longer = RecordWriter(runs[0].folder)
    for status in ("interrupted", "running"):
        longer.add_session({**longer.config, "train": {**longer.config["train"], "rounds": 9}}, {})
        longer.begin()
        train(longer, [[9, 9, 9, 9]])
        longer.set_status(status=status)
    found = [setting for setting in settings([longer, runs[1]]) if setting.rows]
    assert [{row.label: row.interval.mean for row in setting.rows} for setting in found] == [
        {"fedavg": pytest.approx(0.6), "local": pytest.approx(0.6)}
    ]
    text = page.write(Chosen([longer, runs[1]], []), tmp_path / "out", None).read_text()
    assert "running after 5 of 9 rounds" in text
    # One that was never finished has no end
    assert settings([train(create(tmp_path, "pgfed", rounds=9), [[9, 9, 9, 9]])])[0].rows == []


def on_data(record: Record, checksum: str) -> Record:
    (record.folder / "meta.json").write_text(json.dumps({**record.meta, "data_checksum": checksum}))
    return Record(record.folder)


@pytest.mark.parametrize("config", [{"data__limit": 600}, {"partition": {"_option_": "from_file", "clients": 4}}])
def test_seeds_that_have_rows_of_their_own_are_averaged(tmp_path, config):
    runs = [
        on_data(finished(tmp_path, method, [5, 5, 5, 5], seed=seed, **config), f"rows of {seed}")
        for method in ("fedavg", "pgfed")
        for seed in (0, 1)
    ]
    (setting,) = settings(runs)
    assert [len(row.records) for row in setting.rows] == [2, 2]
    # The same seed on other rows is another setting
    runs += [on_data(finished(tmp_path / "other", "fedavg", [5, 5, 5, 5], seed=0, **config), "other rows")]
    assert len(settings(runs)) == 3


@pytest.mark.parametrize(
    ("option", "key"), [("from_file", "partition__path"), ("npz", "dataset__path")], ids=["partition", "dataset"]
)
def test_settings_are_named_by_the_users_own_files(tmp_path, option, key):
    """What tells them apart is the checksum of what is in the files, which nobody can read."""
    group, dotted = key.partition("__")[0], key.replace("__", ".")

    def read_from(file: str, seed: int = 0) -> Record:
        config = {f"{group}___option_": option, key: file}
        return on_data(finished(tmp_path / file, "fedavg", [5, 5, 5, 5], seed=seed, **config), file)

    runs = [read_from("a"), read_from("b")]
    first, second = settings(runs)
    assert [first.config[dotted], second.config[dotted]] == ["a", "b"]
    assert first.differing_keys == [dotted]
    assert [name.count("path=") for name in (first.name, second.name)] == [1, 1]
    assert frame.trials(runs)[dotted].tolist() == ["a", "b"]
    assert dotted in repr(frame.trials(runs))
    if option == "from_file":  # each seed has a file of its own
        (setting,) = settings([runs[0], read_from("b", seed=1)])
        assert dotted not in setting.config


def test_seeds_on_changed_data_are_told_apart(tmp_path):
    runs = [
        on_data(finished(tmp_path, "fedavg", [5, 5, 5, 5], seed=seed), f"version {seed} of the data") for seed in (0, 1)
    ]
    assert [len(setting.records) for setting in settings(runs)] == [1, 1]


def test_a_search_is_told_from_what_it_has_found_and_no_two_settings_share_a_name(tmp_path):
    """A tuned learning rate separates rows, whatever else differs; search trials hold validation data back."""
    runs = [
        finished(tmp_path, "fedavg", [5, 5, 5, 5], data__validation=v, train__lr=lr, partition__alpha=alpha, **more)
        for alpha, more in ((0.3, {}), (0.1, {"model__hidden": [100]}))
        for v, lr in ((0.2, 0.1), (0.2, 0.05), (0.0, 0.05))
    ]
    found = settings(runs)
    assert [len(setting.records) for setting in found] == [1] * 6
    names = [setting.name for setting in found]
    assert names[:3] == [
        "digits, dirichlet(alpha=0.3), mlp(hidden=[200]), validation=0.2, lr=0.1",
        "digits, dirichlet(alpha=0.3), mlp(hidden=[200]), validation=0.2, lr=0.05",
        "digits, dirichlet(alpha=0.3), mlp(hidden=[200]), validation=0.0, lr=0.05",
    ]
    assert len(set(brief(runs)["setting"])) == 6


def test_a_kept_optimiser_state_is_a_setting_and_older_records_had_a_fresh_one(tmp_path):
    def trained(momentum, **state):
        train = {"rounds": 3, "lr": 0.05, "momentum": momentum, **state}
        return finished(tmp_path / f"{momentum}{state}", "fedavg", [5, 5, 5, 5], train=train)

    young, kept = {"optimiser_state": "fresh"}, {"optimiser_state": "kept"}
    runs = [trained(m, **state) for m in (0.9, 0.0) for state in ({}, young, kept)]
    found = settings(runs)
    assert [[r in setting.records for r in runs] for setting in found] == [
        [True, True, False, False, False, False],
        [False, False, True, False, False, False],
        # Without momentum the key has no effect
        [False, False, False, True, True, True],
    ]
    key = "train.optimiser_state"
    assert [setting.config.get(key) for setting in found] == ["fresh", "kept", None]
    assert f"`{key}=kept`" in "\n".join(page._listing(found[1].config))


@pytest.mark.parametrize("other", [{"rows": "train"}, {"clients": "trained"}, {"personal": "stale"}])
def test_what_the_accuracy_is_of_parts_settings(other, tmp_path):
    """Accuracy on training rows, of trained clients alone or of stale models is not compared with the usual one."""
    usual = {"rows": "test", "clients": "all", "personal": "current"}
    runs = [
        finished(tmp_path / "0", "fedavg", [2, 4, 6, 8], metrics={**usual, **other}),
        finished(tmp_path / "1", "local", [4, 4, 6, 8]),
    ]
    first, second = settings(runs)
    (key,) = other
    assert [setting.config[f"metrics.{key}"] for setting in (first, second)] == [other[key], usual[key]]
    assert f"metrics.{key}" in first.differing_keys


def test_what_is_scored_beside_the_accuracy_parts_no_settings(tmp_path):
    """Metrics change no training: runs are compared, with a dash where something was not scored."""
    half = {"subset": 0.5, "subset_size": "union", "all": True, "trained": False}
    fifth = {"subset": 0.2, "subset_size": "own", "all": False, "trained": False}
    none = {"subset": 0.0, "subset_size": "own", "all": False, "trained": False}
    some, more = ("personal", "personal_subset"), ("personal", "personal_subset", "personal_all")
    neutral = {"rows": "test", "clients": "all", "personal": "current", "all_size": "union"}
    runs = [
        finished(tmp_path / "0", "fedavg", [2, 4, 6, 8], metrics=none),
        finished(tmp_path / "1", "fedavg", [2, 4, 6, 8], seed=1, metrics={**none, "subset_size": "union"}),
        finished(tmp_path / "2", "fedavg", [2, 4, 6, 8], views=more, metrics=half),
        finished(tmp_path / "3", "pgfed", [4, 4, 6, 8], views=some, metrics=fifth),
        finished(tmp_path / "4", "local", [4, 4, 6, 8]),  # older records have no such keys
        # Newer ones have all, with values that change nothing
        finished(tmp_path / "5", "fedavg", [2, 4, 6, 8], seed=2, metrics={**none, **neutral, "subset_size": "union"}),
    ]
    (setting,) = settings(runs)
    assert [(row.label, len(row.records)) for row in setting.rows] == [
        ("fedavg", 3),
        ("fedavg (metrics.subset=0.5, metrics.subset_size=union, metrics.all=true)", 1),
        ("pgfed", 1),
        ("local", 1),
    ]
    assert {key for key in setting.config if key.startswith("metrics")} == set(SCORED)
    table = others(setting, setting.baseline("fedavg"))
    assert table["personal S-acc (0.5, union)"].tolist() == ["-", "25.00 (11.18)", "-", "-"]
    assert table["personal S-acc (0.2, own)"].tolist() == ["-", "-", "27.50 (8.29)", "-"]
    assert table["personal G-acc"].tolist() == ["-", "25.00 (11.18)", "-", "-"]
    assert table["gain over fedavg"].tolist() == ["-", "+0.00 (0.00)", "+5.00 (8.66)", "+5.00 (8.66)"]


def test_a_study_parts_neither_settings_nor_rows(tmp_path):
    """A study changes no number of its trial, which counts for a seed that was not trained without it."""
    study = {"_option_": "trajectory", "client": 4}
    runs = [
        finished(tmp_path / "0", "fedavg", [2, 4, 6, 8], study={}),
        finished(tmp_path / "1", "fedala", [4, 4, 6, 8], study=study),
        finished(tmp_path / "2", "fedala", [4, 4, 6, 8], study=study, seed=1),
        finished(tmp_path / "3", "fedala", [4, 4, 6, 8], study={**study, "client": 5}),
        finished(tmp_path / "4", "fedala", [4, 4, 6, 8]),  # older records have no such key
    ]
    for record in runs[1:4]:
        record.meta |= {"study": "trajectory", "plugin_versions": {"study": 1}}
    (setting,) = settings(runs)
    assert [(row.label, row.records) for row in setting.rows] == [("fedavg", runs[:1]), ("fedala", [runs[4], runs[2]])]
    assert setting.rows[1].studied == runs[1:4]
    assert not any(key.startswith("study") for key in setting.config)
    lines = page._studies(setting.rows)
    assert lines[0] == f"trajectory of fedala-digits-dirichlet-0: `{runs[1].folder}/study.parquet`"
    assert len(lines) == 3


def test_hyperparameters_make_rows_named_by_where_they_differ(tmp_path):
    runs = [finished(tmp_path, "pgfed", [5, 5, 5, 5], algorithm__mu=mu) for mu in (0.1, 0.5)]
    (setting,) = settings(runs)
    assert [row.label for row in setting.rows] == ["pgfed (mu=0.1)", "pgfed (mu=0.5)"]


def test_unfinished_runs_are_counted_never_averaged(tmp_path):
    done = finished(tmp_path, "fedavg", [5, 5, 5, 5], seed=0)
    failed = train(create(tmp_path, "fedavg", seed=1), [[1, 1, 1, 1]])
    failed.set_status(status="failed", error="ValueError: nan")
    table = brief([done, failed, create(tmp_path, "pgfed")])
    assert list(table["method"]) == ["fedavg"]
    assert table.loc[0, "accuracy %"] == "50.00"
    assert table.loc[0, "seeds"] == "1 of 2"


def test_a_seed_that_failed_with_a_study_and_has_a_result_without_is_not_missing(tmp_path):
    failed = create(tmp_path / "studied", "fedavg", study={"_option_": "trajectory"})
    failed.set_status(status="failed", error="ValueError: nan")
    assert brief([finished(tmp_path, "fedavg", [5, 5, 5, 5]), failed]).loc[0, "seeds"] == "1"


def test_others_are_compared_with_local_or_fedavg_unless_the_user_says(tmp_path):
    runs = {method: finished(tmp_path, method, [5, 5, 5, 5]) for method in ("pgfed", "fedala", "fedavg", "local")}
    for methods, wanted in (
        (["pgfed", "fedala"], "pgfed"),
        (["pgfed", "fedavg"], "fedavg"),
        (["pgfed", "fedavg", "local"], "local"),
    ):
        (setting,) = settings([runs[method] for method in methods])
        assert setting.baseline(None).label == wanted
        assert setting.baseline("pgfed").label == "pgfed"


def test_unknown_baseline_names_the_nearest(tmp_path):
    found = settings([finished(tmp_path, "fedavg", [5, 5, 5, 5])])
    with pytest.raises(UserError, match=r"--baseline fedavgg.*Did you mean 'fedavg'"):
        check_baseline(found, "fedavgg")


def test_curve_of_seeds_has_their_interval_as_band(tmp_path):
    runs = [finished(tmp_path, "fedavg", [n] * 4, seed=n) for n in (4, 6, 5)]
    curves = [settings(runs[:count])[0].rows[0].curve() for count in (2, 3)]
    for curve in curves:
        assert curve.rounds.tolist() == [1, 2, 3]
    assert curves[0].mean.tolist() == pytest.approx([0.25, 0.6, 0.5])
    assert (curves[0].low[2], curves[0].high[2]) == (pytest.approx(0.4), pytest.approx(0.6))
    assert (curves[1].high - curves[1].mean)[2] == pytest.approx(4.302653 * 0.1 / np.sqrt(3), rel=1e-5)


def test_other_metrics_by_hand(tmp_path):
    """Clients at 20, 40, 60, 80 percent: mean 50, std sqrt(5) * 10; all views except personal have half of it."""
    all_data = finished(tmp_path, "pgfed", [2, 4, 6, 8], views=("personal", "personal_all", "trained"))
    records = [finished(tmp_path, "local", [2, 2, 6, 6]), all_data]
    (setting,) = settings(records)
    table = others(setting, setting.baseline("local"), goal=0.6).set_index("method")
    assert table.loc["pgfed", "macro F1"] == "25.00"
    assert table.loc["pgfed", "over samples"] == "50.00"
    assert table.loc["pgfed", "personal G-acc"] == "25.00 (11.18)"
    assert table.loc["pgfed", "trained"] == "25.00 (11.18)"
    assert table.loc["local", "personal G-acc"] == "-"
    # Mean and std of 0, 20, 0 and 20 points
    assert table.loc["pgfed", "gain over local"] == "+10.00 (10.00)"
    assert table.loc["local", "gain over local"] == "-"
    assert table["rounds to 60%"].to_dict() == {"local": "never", "pgfed": "2"}
    last = all_data.clients_in(3)
    assert client_accuracy(last, "personal", "all").tolist() == pytest.approx([0.1, 0.2, 0.3, 0.4])
    assert client_accuracy(last).tolist() == pytest.approx([0.2, 0.4, 0.6, 0.8])


def test_a_new_metric_is_a_column_whatever_it_is_called(tmp_path, monkeypatch):
    folder, known = tmp_path / "runs", recorded.score_summary
    runs = [finished(folder, "fedavg", [2, 4, 6, 8], seed=0)]
    monkeypatch.setattr(recorded, "score_summary", lambda scores: {**known(scores), "top_accuracy": 0.25})
    runs += [finished(folder, method, [2, 4, 6, 8], seed=1) for method in ("fedavg", "local")]
    (setting,) = settings(runs)
    assert evaluated(runs) == ["personal", "global"]
    assert list(runs[1].rounds["personal_top_accuracy"]) == [0.25] * 3
    mixed, new = setting.rows
    assert tables.percent(tables._last(new, "personal_top_accuracy")) == "25.00"
    assert tables.percent(tables._last(mixed, "personal_top_accuracy")) == tables.NONE
    assert main(["report", "runs", "--runs", str(folder), "--out", str(tmp_path / "out")]) == 0


def test_rounds_to_a_target_count_the_seeds_that_never_reach_it(tmp_path):
    (setting,) = settings([finished(tmp_path, "pgfed", [n] * 4, seed=n) for n in (4, 5, 6)])
    (row,) = others(setting, None, goal=0.65).to_dict("records")
    assert row["rounds to 65%"] == "2 (2 of 3 seeds never)"
    (row,) = tables.numbers(setting, None, goal=0.65).to_dict("records")
    assert (row["rounds_to_65%"], row["seeds_reaching_65%"]) == (2, 1)
    (row,) = tables.numbers(setting, None, goal=0.95).to_dict("records")
    assert np.isnan(row["rounds_to_95%"])
    assert row["seeds_reaching_95%"] == 0


def test_a_federation_of_one_client_has_no_interval(tmp_path):
    one = {"partition__clients": 1}
    runs = [finished(tmp_path, name, [correct], **one) for name, correct in (("local", 5), ("fedavg", 6))]
    (setting,) = settings(runs)
    table = accuracy(setting, setting.rows[0])
    assert list(table["no interval of one client"]) == ["-", "-"]
    assert list(table["minus local [no interval of one client]"]) == ["-", "+10.00"]


def test_what_a_run_took(tmp_path):
    record = finished(tmp_path, "fedavg", [2, 4, 6, 8])
    (line,) = cost(settings([record])[0]).to_dict("records")
    assert (line["seconds"], line["minutes"], line["images/s"]) == ("1.8", "0.03", "400")
    assert "epsilon" not in line
    record._rounds[-1]["epsilon"] = 8.2
    (line,) = cost(settings([record])[0]).to_dict("records")
    assert line["epsilon"] == "8.20"


def test_new_clients_by_hand(tmp_path):
    """Two seeds of two new clients, one of them without test rows: the mean of the other's accuracies, by epoch."""
    records_ = []
    for seed, correct in ((0, (1, 3)), (1, (2, 4))):
        record = finished(tmp_path, "fedavg", [2, 4], seed=seed)
        rows = [
            {"epoch": epoch, "client": client, "n": n, "correct": c if n else 0, "loss": 0.5, "f1": 0.5}
            for epoch, c in enumerate(correct)
            for client, n in ((7, 4), (9, 0))
        ]
        record.save_new_clients(pd.DataFrame(rows))
        records_.append(record)
    curve = Row("fedavg", records_).new_clients()
    assert curve is not None
    assert curve.rounds.tolist() == [0, 1]
    assert curve.mean.tolist() == [0.375, 0.875]
    assert Row("fedavg", [finished(tmp_path, "fedavg", [2, 4], seed=5)]).new_clients() is None


def test_a_column_that_a_record_lacks_is_a_number_that_is_missing(tmp_path):
    """A record may be from before a metric was added: every page is written, without that number."""
    record = finished(tmp_path / "runs", "fedavg", [5, 6, 7, 8])
    file = record.folder / "rounds.parquet"
    needed = ["round", "seconds", "eval_seconds", "personal_accuracy"]
    pd.read_parquet(file)[needed].to_parquet(file)
    found = summary(Record(record.folder))
    assert (found.last, found.rounds) == (0.65, 3)
    unknown = (found.std, found.worst10, found.global_last, found.images_per_second, found.floats_down, found.floats_up)
    assert np.isnan(unknown).all()
    (of,) = settings([Record(record.folder)])
    made = (accuracy(of, None), others(of, None), cost(of), brief([Record(record.folder)]))
    shown = {key: value for table in made for key, value in table.iloc[0].items()}
    missing = ("worst 10%", "global model", "macro F1", "over samples", "images/s", "floats down", "floats sent")
    assert {shown[key] for key in missing} == {tables.NONE}
    assert shown["last round"] == "65.00"
    assert main(["report", "runs", "--runs", str(tmp_path / "runs"), "--out", str(tmp_path / "out")]) == 0
