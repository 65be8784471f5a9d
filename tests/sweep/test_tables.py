"""The papers' tables as sweep files: rows, columns, settings and grids are those that the papers print and state."""

from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml

from pflsweep.config.compose import Config, compose
from pflsweep.config.hydra_loader import option_files
from pflsweep.config.keys import PLUGS, flat
from pflsweep.config.schema import check
from pflsweep.sweep.plan import changed
from pflsweep.sweep.spec import Scale, Table, read_scale, read_space, read_table
from pflsweep.trial.build import build
from pflsweep.util.resources import sweep_names
from tests import test_settings

PAPER = Path(__file__).parents[2] / "reports" / "paper"
SWEEPS = Path(__file__).parents[2] / "sweeps"
PRINTED = sorted(file.stem for file in PAPER.glob("*_*.csv"))
ALGORITHMS = list(option_files("algorithm"))
BENCHMARK = "benchmark"  # sweep that is of no paper
OF_PAPERS = [name for name in sweep_names() if name != BENCHMARK]
# Rows with another name than the algorithm that they train
ROWS = {
    "cfl": "clustered",
    # Two objectives of a study, which one trial records together
    **dict.fromkeys(("explicit", "implicit"), "fedavg"),
    "sfedpg": "s_fedpg",
    "pgfed_mu0": "pgfed",
    **{f"sfedpg_s{s}": "s_fedpg" for s in (1, 3, 5)},
    **{f"fedpg_g{gamma}": "fedpg_mix" for gamma in ("03", "06", "10")},
    **{f"fedfomo_n{n}": "fedfomo" for n in (2, 5, 10, 15)},
    **{f"validation{share}": "fedfomo" for share in ("0.01", "0.05", "0.1", "0.2", "0.4", "0.6", "0.8", "0.9")},
}
SEARCH = {"pgfed": ["tune=grid", "tune.split=validation"], "fedpg": ["tune=grid", "tune.split=test"]}
# Figures with five runs, in a paper that has three elsewhere
FIVE_RUNS = ("fedfomo/figure4", "fedfomo/figure5", "fedfomo/figure10")
SPEED = "cifar10/clients50/batch128"  # of pgfed/table7
# Studies of one trial, without a search
STUDIED = ("pgfed/figure2", "fedala/figure3", "fedala/figure4")


def sweep_of(csv: str) -> str:
    """Return the sweep that fills a printed table."""
    return csv.replace("_fig", "/figure").replace("_", "/")


def column(table: str, row: Any) -> str:
    """Return the setting of a sweep that fills a printed column."""
    if row.setting.startswith("domain="):
        return f"{row.dataset}/domain"
    two_models = table == "fedala/table2" and row.model == "resnet18"
    return f"{row.dataset}/{row.setting}" + ("/resnet18" if two_models else "")


def algorithm_of(row: str) -> str:
    return ROWS.get(row, row.removesuffix("_ala"))


@cache
def table(name: str) -> Table:
    return read_table(name)


@cache
def composed(words: tuple[str, ...]) -> Config:
    config = compose(list(words))
    check(config)
    return config


def config_of(name: str, setting: str, row: str) -> Config:
    return composed((*table(name).settings[setting], *table(name).methods[row]))


def any_row(name: str) -> str:
    """Return a row that most tables have, since composing a config takes a while."""
    rows = list(table(name).methods)
    return next((row for row in rows if algorithm_of(row) in ("fedavg", "fedala")), rows[0])


def changes(name: str, row: str) -> list[Any]:
    space = table(name).space
    return [space[part] for part in ("all", row) if part in space]


def test_every_printed_table_and_each_figure_with_runs_of_its_own_has_a_sweep() -> None:
    of = {"pgfed": (2, 4), "fedala": (3, 4), "fedpg": (1, 2), "fedfomo": (1, 2, 3, 4, 10)}
    figures = {f"{paper}/figure{number}" for paper, numbers in of.items() for number in numbers}
    assert len(PRINTED) == 20
    # Not printed: what PGFed's auxiliary risk is worth
    assert set(OF_PAPERS) == {sweep_of(csv) for csv in PRINTED} | figures | {"pgfed/table1_mu0"}


@pytest.mark.parametrize("csv", PRINTED)
def test_rows_columns_and_cells_are_the_printed_ones(csv: str) -> None:
    """The sweep has exactly the printed cells, and the trials that printed gains are measured against."""
    name, rows = sweep_of(csv), pd.read_csv(PAPER / f"{csv}.csv", dtype=str)
    printed = {(column(name, row), row.method) for row in rows.itertuples()}
    settings = {setting for setting, _ in printed}
    if csv in ("pgfed_table3", "pgfed_table4"):
        printed |= {(setting, "local") for setting in settings}
    if csv == "fedala_table4":
        printed |= {(setting, row.removesuffix("_ala")) for setting, row in printed if row.endswith("_ala")}
        assert len(printed) == 70 + 18 + 18
    # Speed is measured with another batch size
    if csv == "pgfed_table7":
        printed |= {(SPEED, row) for _, row in printed}
        settings = settings | {SPEED}
    cells = table(name).cells
    assert set(cells) == printed
    assert len(cells) == len(printed)
    assert set(table(name).settings) == settings
    assert set(table(name).methods) == {row for _, row in printed}


@pytest.mark.slow
@pytest.mark.parametrize("csv", PRINTED)
def test_settings_are_those_of_the_papers_settings_csv(csv: str) -> None:
    name, (paper, _, number) = sweep_of(csv), csv.partition("_")
    stated = test_settings.PRINTED.query(f"paper == '{paper}' and table == '{number.removeprefix('table')}'")
    columns = {SPEED if csv == "pgfed_table7" else column(name, line): line for line in stated.itertuples()}
    for setting, line in columns.items():
        theirs = test_settings.checked(tuple(test_settings.overrides(line)))
        assert without_algorithm(config_of(name, setting, any_row(name))) == without_algorithm(theirs), setting
    # Table 7 prints accuracies beside speeds; those are table 1's, with its batch size.
    assert set(table(name).settings) - set(columns) == ({"cifar10/clients50"} if SPEED in columns else set())


def without_algorithm(config: Config) -> dict[str, Any]:
    return {key: value for key, value in config.values.items() if key != "algorithm"}


@pytest.mark.slow
@pytest.mark.parametrize("name", OF_PAPERS)
def test_every_row_trains_its_method_and_every_column_composes(name: str) -> None:
    paper = name.partition("/")[0]
    for row, words in table(name).methods.items():
        config = composed((f"+setting={paper}", *words))
        assert config.choices["algorithm"] == algorithm_of(row)
        assert (config.choices["ala"] == "on") is row.endswith("_ala")
    for setting in table(name).settings:
        config_of(name, setting, any_row(name))


@pytest.mark.parametrize("paper", ["pgfed", "fedala", "fedpg", "fedfomo"])
def test_a_name_means_the_same_in_every_table_of_a_paper(paper: str) -> None:
    rows: dict[str, list[str]] = {}
    for name in sweep_names():
        if name.startswith(paper):
            for row, words in table(name).methods.items():
                assert rows.setdefault(row, words) == words, f"{row} in {name}"


def test_trials_that_tables_share_are_the_same() -> None:
    """Tables that show the same trials in another way add none."""
    whole = table("pgfed/table1")
    for k in (2, 3, 4, 7):
        view = table(f"pgfed/table{k}")
        own = {column: words for column, words in view.settings.items() if column != SPEED}
        assert set(own) <= set(whole.settings)
        added = set(view.methods) - set(whole.methods)
        assert added == ({"pgfed_ce"} if k == 7 else set())
        assert all(words == whole.settings[name] for name, words in own.items())
        assert (view.seeds, view.search, view.space) == (whole.seeds, whole.search, whole.space)
    resnet = config_of("fedala/table2", "tinyimagenet/dir0.1/resnet18", "fedala")
    for name, setting in (("3", "dir0.1"), ("1", "s80"), ("1", "p1")):
        assert config_of(f"fedala/table{name}", f"tinyimagenet/{setting}", "fedala") == resnet
    for setting in ("tinyimagenet/dir0.1", "cifar100/dir0.1"):
        assert table("fedala/table4").settings[setting] == table("fedala/table2").settings[setting]
    ten = config_of("fedpg/table2", "cifar10/online10pct", "fedpg")
    assert ten == config_of("fedpg/table1", "cifar10/pat2", "fedpg")
    assert table("fedpg/table2").space == table("fedpg/table1").space
    default = config_of("fedfomo/table2", "cifar10/latent5", "fedfomo_n5")
    assert config_of("fedfomo/figure3", "cifar10/latent5;epsilon0.3", "fedfomo_n5") == default
    assert config_of("fedfomo/figure10", "cifar10/latent5", "validation0.2") == default
    shuffled = table("fedfomo/figure5").settings["cifar10/latent5;out_of_local"]
    assert table("fedfomo/figure4").settings["cifar10/latent5;out_of_local"] == shuffled


@pytest.mark.parametrize("name", OF_PAPERS)
def test_seeds_and_search_are_the_papers(name: str) -> None:
    paper = name.partition("/")[0]
    runs = 1 if name in STUDIED else 5 if paper in ("fedala", "fedpg") or name in FIVE_RUNS else 3
    assert table(name).seeds == list(range(runs))
    assert table(name).search == ([] if name in STUDIED else SEARCH.get(paper, []))


@pytest.mark.parametrize("scale", ["paper", "small"])
def test_the_benchmark_tunes_all_methods_alike(scale: str) -> None:
    """The benchmark has all of conf/algorithm, with the same number of random points and one range of the learning
    rate.
    """
    of = read_table(BENCHMARK, scale)
    assert of.methods == {name: [f"algorithm={name}"] for name in ALGORITHMS if not name.startswith("as_run/")}
    assert (of.seeds, of.only, of.search[0]) == ([0, 1, 2], {}, "tune=random")
    for row in of.methods:
        axis = read_space(row, [of.space["all"], of.space.get(row, {})], BENCHMARK)["train.lr"]
        assert (axis.range, axis.log) == ((0.01, 0.3), True), row


@pytest.mark.slow
def test_the_benchmarks_columns_compose_and_fedbn_has_layers_to_keep_on_images() -> None:
    for setting, words in table(BENCHMARK).settings.items():
        config = composed((*words, "algorithm=fedbn"))
        dataset, part = setting.split("/")
        assert config.choices["dataset"] == dataset
        assert str(config.values["partition"].get("alpha", "2")) in part
        assert config.values["model"].get("norm") == (None if dataset == "digits" else "group")


@pytest.mark.slow
def test_what_is_varied_by_row_or_column_is_as_printed() -> None:
    """Hyperparameters that a table or figure varies have the printed values."""

    def shown(name: str, prefix: str, key: str) -> list[Any]:
        settings = [s for s in table(name).settings if s.startswith(prefix)] or [*table(name).settings][:1]
        rows = [r for r in table(name).methods if r.startswith(prefix)] or [*table(name).methods]
        return list(dict.fromkeys(config_of(name, s, r).values["algorithm"][key] for s in settings for r in rows))

    assert shown("fedala/table1", "tinyimagenet/s", "share") == [0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0]
    assert shown("fedala/table1", "tinyimagenet/s", "layers") == [1]
    assert shown("fedala/table1", "tinyimagenet/p", "layers") == [6, 5, 4, 3, 2, 1]
    assert shown("fedala/table1", "tinyimagenet/p", "share") == [0.8]
    assert shown("fedpg/table1", "fedpg_g", "gamma") == [0.3, 0.6, 1.0]
    assert shown("fedfomo/table1", "fedfomo_n", "models") == [5, 10]
    assert shown("fedfomo/table1", "fedfomo_n", "epsilon") == [0.3]
    assert shown("fedfomo/figure10", "validation", "validation") == [0.01, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 0.9]
    assert shown("fedala/table2", "fedfomo", "models") == shown("fedala/table2", "apple", "models") == [20]


def test_every_algorithm_has_a_space() -> None:
    files = (SWEEPS / "space").rglob("*.yaml")
    assert sorted(file.relative_to(SWEEPS / "space").with_suffix("").as_posix() for file in files) == ALGORITHMS


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_value_of_a_space_is_one_that_its_method_can_have(algorithm: str) -> None:
    config, space = composed(("+setting=pgfed", f"algorithm={algorithm}")), read_space(algorithm, [], "")
    assert set(space) <= set(flat(config.values))
    assert "train.lr" in space
    for key, axis in space.items():
        for value in axis.grid:
            check(changed(config, {key: value}))


@pytest.mark.parametrize("file", sorted(SWEEPS.rglob("*.yaml")), ids=lambda file: file.stem)
def test_every_axis_says_where_its_grid_is_from(file: Path) -> None:
    content = yaml.safe_load(file.read_text())
    nodes = [content, *((content.get("space") or {}).values())]
    axes = {key: axis for node in nodes for key, axis in (node or {}).items() if isinstance(axis, dict) and "." in key}
    papers = (
        "PGFed, ",
        "FedALA, ",
        "FedPG supplement, ",
        "FedFomo, ",
        "FedProx",
        "Ditto",
        "MOON",
        "Hsu et al.",
        "Reddi et al.",
    )
    for key, axis in axes.items():
        assert axis["source"] == "ours" or axis["source"].startswith(papers), key


FOUR = [0.1, 0.01, 0.001, 0.0001]
STATED = {  # typed from the papers: PGFed, section 5.1 and appendix E; the others' tables and implementation details
    ("local", "train.lr"): FOUR,
    ("pgfed", "algorithm.mu"): [0.1, 0.05, 0.01, 0.005, 0.001],
    ("pgfed_ce", "algorithm.mu"): [0.1, 0.05, 0.01, 0.005, 0.001],
    ("pgfedmo", "algorithm.mu"): [0.1, 0.05, 0.01, 0.005, 0.001],
    ("pgfedmo", "algorithm.beta"): [0.2, 0.5, 0.8],
    ("feddyn", "algorithm.alpha"): [0.1, 0.01, 0.001],
    ("apfl", "algorithm.alpha"): [0.25, 0.50, 0.75],
    ("perfedavg", "algorithm.alpha"): FOUR,
    ("fedbabu", "algorithm.finetune_lr"): FOUR,
    ("fedala", "algorithm.share"): [0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0],
    ("fedpg", "train.lr"): [0.01, 0.05, 0.1],
    ("s_fedpg", "train.lr"): [0.01, 0.05, 0.1],
    ("fedpg_mix", "train.lr"): [0.01, 0.05, 0.1],
    ("fedpg_mix", "algorithm.gamma"): [0.3, 0.6, 1.0],
    ("fedfomo", "algorithm.models"): [5, 10],
    ("fedfomo_ma", "algorithm.models"): [5, 10],
}


@pytest.mark.parametrize(("algorithm", "key"), STATED)
def test_a_stated_grid_is_searched_as_stated(algorithm: str, key: str) -> None:
    axis = read_space(algorithm, [], "")[key]
    assert axis.grid == STATED[algorithm, key]
    assert axis.source != "ours"


@pytest.mark.parametrize(
    "name", [name for name in sweep_names() if name.partition("/")[0] in SEARCH and name not in STUDIED]
)
def test_a_table_searches_what_its_paper_says_and_no_more(name: str) -> None:
    paper = name.partition("/")[0]
    tuned = {
        "feddyn": ["algorithm.alpha"],
        "apfl": ["algorithm.alpha"],
        "perfedavg": ["algorithm.alpha"],
        "fedbabu": ["algorithm.finetune_lr"],
        "pgfed": ["algorithm.mu"],
        "pgfed_ce": ["algorithm.mu"],
        "pgfedmo": ["algorithm.mu", "algorithm.beta"],
    }
    for row in table(name).methods:
        space = read_space(algorithm_of(row), changes(name, row), name)
        also = tuned.get(row, []) if paper == "pgfed" else []
        assert sorted(space) == sorted(["train.lr", *also]), row
        assert space["train.lr"].grid == (FOUR if paper == "pgfed" else [0.01, 0.05, 0.1])
        assert all(axis.source.startswith(("PGFed", "FedPG")) for axis in space.values())


def plugged() -> set[tuple[str, ...]]:
    """Return the rows of all tables with a plug-in, in each of their variants."""
    found = set()
    for name in sweep_names():
        for of_setting in table(name).settings.values():
            dp = [word.replace("+setting=fedfomo_dp", "privacy=dp_sgd") for word in of_setting]
            for of_method in table(name).methods.values():
                words = [word for word in (*of_method, *dp) if word.partition("=")[0] in PLUGS]
                if words:
                    found.add((*(word for word in of_method if word not in words), *words))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("words", sorted(plugged()), ids=" ".join)
def test_plug_ins_go_with_the_rows_that_have_them(words: tuple[str, ...]) -> None:
    build(compose([*words, "partition.clients=4"]))


@pytest.mark.parametrize("name", sweep_names())
def test_a_scale_changes_rows_and_adds_none(name: str) -> None:
    assert list(read_table(name, "small").methods) == list(read_table(name).methods)


def test_scales() -> None:
    small, smoke = read_scale("small"), read_scale("smoke")
    assert read_scale("paper") == Scale("paper", None, None, None, {})
    assert small == Scale("small", 1_500_000, None, 2, {})
    assert (smoke.images, smoke.points, smoke.seeds) == (12_000, 2, 1)
    latent = config_of("fedfomo/table2", "cifar10/latent2", "fedavg")
    dirichlet = config_of("pgfed/table1", "cifar10/clients100", "fedavg")
    assert set(smoke.set) <= set(flat(latent.values)) | set(flat(dirichlet.values))
    for config in (latent, dirichlet):
        check(changed(config, {key: value for key, value in smoke.set.items() if key in flat(config.values)}))
