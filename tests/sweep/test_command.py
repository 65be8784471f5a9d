"""`pflsweep -m`: what is refused before anything runs, and values of keys that only some options have."""

from pathlib import Path

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from pflsweep.commands.main import main
from pflsweep.sweep.overrides import as_typed, divide, hide_from_hydra, sort_overrides

SMALL = ["tracking=none", "partition.clients=6", "model.hidden=[16]", "train.epochs=1", "train.rounds=1"]


pytestmark = pytest.mark.usefixtures("elsewhere")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["sweep=pgfed/table1"], ["sweep=pgfed/table1 is a key of a sweep, not of a single trial: add -m"]),
        (["tune=grid"], ["tune=grid is a key of a sweep, not of a single trial: add -m"]),
        (["tune.points=3"], ["tune.points=3 is a key of a sweep, not of a single trial: add -m"]),
        (["workers.count=2"], ["add -m"]),
        (["scale=small"], ["add -m"]),
        (["plan=true"], ["add -m"]),
        (["-m", "sweep=pgfed/table9"], ["No sweep 'pgfed/table9'", "Did you mean 'pgfed/table"]),
        (["-m", "sweep=3"], ["sweep is 3", "text"]),
        (["-m", "swep=pgfed/table1"], ["'swep'", "Did you mean 'sweep'"]),
        (["-m", "sweep=pgfed/table1", "only=[fedavgg]"], ["only: 'fedavgg'", "sweeps/pgfed/table1.yaml", "'fedavg'"]),
        (["-m", "sweep=pgfed/table1", "only=fedavg"], ["only is 'fedavg'", "a list"]),
        (["-m", "sweep=fedala/table4", "only=[fedavg_ala,agnews*]"], ["only:", "none of these rows in these columns"]),
        (["-m", "only=[fedavg]"], ["only=[..]", "sweep=pgfed/table1"]),
        (["-m", "sweep=pgfed/table1", "algorithm=fedavg,local"], ["algorithm=fedavg", "its own methods", "only=[..]"]),
        (["-m", "sweep=pgfed/table1", "algorithm=fedavg"], ["algorithm=fedavg", "its own methods", "only=[..]"]),
        (["-m", "sweep=pgfed/table1", "+setting=fedfomo"], ["setting=fedfomo", "its own methods"]),
        (["-m", "sweep=pgfed/table1", "algorithm.mu=1"], ["pgfed/table1.yaml: local in", "'algorithm.mu'"]),
        (["-m", "sweep=pgfed/table1", "algorithm.mu=1,2"], ["'algorithm.mu'", "local in cifar10/clients25"]),
        (["-m", "scale=smal"], ["No scale 'smal'", "Did you mean 'small'", "paper, small, smoke"]),
        (["-m", "scale=smal"], ["as in scale=150"]),
        (["-m", "scale=2.5"], ["scale is 2.5", "text or a whole number"]),
        (["-m", "scale=0"], ["scale=0: a number of rounds has to be at least 1"]),
        (["-m", "tune=grid", "tune.scale=0"], ["tune.scale=0: a number of rounds has to be at least 1"]),
        (["-m", "tune=grid", "tune.scale=smal"], ["tune.scale: No scale 'smal'", "Did you mean 'small'"]),
        (["-m", "tune.scale=small"], ["tune.scale=small: nothing is searched"]),
        (["-m", "tune=gird"], ["tune=gird", "Did you mean 'grid'"]),
        (["-m", "tune=tpe", "tune.points=null"], ["tune.points is null", "tpe", "needs a number"]),
        (["-m", "tune=grid", "tune.points=0"], ["tune.points is 0", "at least 1"]),
        (["-m", "tune=grid", "tune.seeds=3", "seed=0,1"], ["tune.seeds is 3", "2: [0, 1]"]),
        (["-m", "tune=grid", "tune.split=tset"], ["tune.split is 'tset'", "Did you mean 'test'"]),
        (["-m", "tune=grid", "tune.validation=1"], ["tune.validation is 1", "below 1"]),
        (["-m", "tune=grid", "tune.view=personl"], ["tune.view", "Did you mean 'personal'"]),
        (["-m", "tune=grid", "tune.round=first"], ["tune.round is 'first'", "last, best"]),
        (["-m", "tune=grid", "tune.prune=medain"], ["tune.prune", "Did you mean 'median'"]),
        (["-m", "tune=grid", "tune.sampler=gp"], ["tune.sampler is 'gp'", "cmaes"]),
        (["-m", "tune.pionts=3"], ["tune.pionts", "Did you mean 'tune.points'"]),
        (["-m", "workers.count=0"], ["workers.count is 0", "at least 1"]),
        (["-m", "workers.count=two"], ["workers.count is 'two'", "a whole number"]),
        (["-m", "workers.backend=dsak"], ["workers.backend is 'dsak'", "Did you mean 'dask'"]),
        (["-m", "workers.backend=dask"], ["workers.backend=dask needs workers.address"]),
        (["-m", "workers.heartbeat=0"], ["workers.heartbeat is 0", "at least 1"]),
        (["-m", "workers.storage=''"], ["workers.storage is ''", "not empty"]),
        (["-m", "workers.storge=x"], ["workers.storge", "Did you mean 'workers.storage'"]),
        (["-m", "seed=0,-1"], ["seed is -1", "at least 0"]),
        (["-m", "seed=0.5,1"], ["seed is 0.5", "a whole number"]),
        (["-m", "seed=0,a"], ["seed is 'a'", "a whole number"]),
        (["-m", "algorithm=local,fedprox", "algorithm.mu=1"], ["algorithm.mu is not a key of every option", "=local"]),
        (["-m", "algorithm=fedprox,local", "algorithm.mu=1"], ["algorithm.mu is not a key of every option", "=local"]),
        (["-m", "algorithm=local,fedprox", "algorithm.mu=1,2"], ["algorithm.mu is not a key of every", "=local"]),
        (["-m", "algorithm=local,fedprox", "algorithm.mo=1"], ["'algorithm.mo'", "'algorithm.mu'", "=local"]),
        (["-m", "algorithm=glob(zzz*)"], ["'algorithm=glob(zzz*)' matches nothing"]),
        (["-m", "algorithm=local,fedavg", "train.lrr=1"], ["'train.lrr'", "Did you mean 'train.lr'"]),
        (["-m", "algorithm=fedprox,pgfed", "algorithm.mu=-1"], ["algorithm.mu is -1", "fedprox"]),
        (["-m", "algorithm=fedprox,pgfed", "algorithm.mu=[1"], ["'algorithm.mu=[1' cannot be read as key=value"]),
    ],
    ids=lambda argv: " ".join(argv),
)
def test_bad_input_is_one_paragraph_and_exit_code_2(
    argv: list[str], words: list[str], capsys: pytest.CaptureFixture
) -> None:
    assert main(argv) == 2
    out, err = capsys.readouterr()
    assert [word for word in words if word not in err] == []
    assert err.count("\n") == 1, err
    assert out == ""
    assert list(Path().iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("argv", "rows"),
    [
        (["algorithm=fedprox,pgfed", "algorithm.mu=0.25"], {"fedprox": [0.25], "pgfed": [0.25]}),
        (["algorithm.mu=0.25,0.5", "algorithm=fedprox,pgfed"], {"fedprox": [0.25, 0.5], "pgfed": [0.25, 0.5]}),
        (["algorithm=fedprox", "algorithm.mu=0.25", "seed=0,1"], {"fedprox": [0.25, 0.25]}),
    ],
)
def test_a_value_that_not_every_option_has(argv: list[str], rows: dict[str, list[float]]) -> None:
    import pandas as pd
    import yaml

    assert main(["-m", *argv, *SMALL]) == 0
    found: dict[str, list[float]] = {name: [] for name in rows}
    for file in Path("runs").glob("*/config.yaml"):
        assert len(pd.read_parquet(file.parent / "rounds.parquet")) == 1
        node = yaml.safe_load(file.read_text())["algorithm"]
        found[node["_option_"]].append(node["mu"])
    assert {name: sorted(values) for name, values in found.items()} == rows


VALUES = ["0.1", "null", "a=b", "[1, 2]", "{x: 1}", "'it''s'", '"a\\"b"', "${train.lr}", "~/x", "a\\,b", "", "é%27"]


@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("head", ["", "+", "++"])
def test_what_hydra_is_handed_is_read_as_it_was_typed(value: str, head: str) -> None:
    word = f"{head}algorithm.mu={value}"
    handed = hide_from_hydra(word)
    assert as_typed(handed) == word
    if handed != word:  # some of these cannot be parsed
        (override,) = OverridesParser.create().parse_overrides([handed])
        assert override.is_sweep_override()
        assert override.key_or_group == "algorithm.mu"


@pytest.mark.parametrize(
    "word",
    ["seed=3", "algorithm=fedavg", "+setting=pgfed", "~algorithm.mu", "algorithm.mu=1,2", "tune.points=3", "data.new=2",
     "hydra.job.name=x", "algorithm.mu=range(1,3)"],
)  # fmt: skip
def test_only_single_values_of_groups_are_handed_past(word: str) -> None:
    assert hide_from_hydra(word) == as_typed(word) == word


def test_words_are_sorted() -> None:
    words = sort_overrides(
        ["+setting=pgfed", "seed=2,1,2", "train.lr=1,0.2,1.0", "algorithm=a,b", "train.threads=auto,2", "train.batch=5",
         "data.download=true,false", "+algorithm.new=1,2"],
        OverridesParser.create(),
    )  # fmt: skip
    assert words.fixed == ["+setting=pgfed", "train.batch=5"]
    assert words.seeds == [2, 1]
    assert words.axes == {"train.lr": [1.0, 0.2], "data.download": [True, False]}
    assert words.options == [
        ["algorithm=a", "algorithm=b"],
        ["train.threads=auto", "train.threads=2"],
        ["+algorithm.new=1", "+algorithm.new=2"],
    ]


def test_numbers_are_set_later_where_nothing_else_is_said_of_their_group() -> None:
    parser = OverridesParser.create()
    words = [
        "+setting=pgfed",
        "partition.clients=50",
        "algorithm=pgfed",
        "algorithm.mu=1",
        "train.lr=0.1",
        "train.lr=2",
    ]
    composed = ["+setting=pgfed", "algorithm=pgfed", "algorithm.mu=1"]
    assert divide(words, parser) == (composed, {"partition.clients": 50, "train.lr": 2})
    words = ["train.batch=5", "train.chunk=auto", "seed=3", "+data.new=1", "data.download=true", "model.hidden=[1]"]
    assert divide(words, parser) == (words, {})
