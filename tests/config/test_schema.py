"""Which values a config may have, and the errors for others."""

import re
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from pflsweep.config.compose import Config, compose
from pflsweep.config.fields import Rule, field_rule, hyperparameters
from pflsweep.config.hydra_loader import conf_dir, read_option
from pflsweep.config.keys import PLUGS
from pflsweep.config.schema import check
from pflsweep.methods.protocol import hyper
from pflsweep.trial.build import build, build_model
from pflsweep.util import resources
from pflsweep.util.errors import UserError


def options(group: str) -> list[str]:
    return sorted(file.stem for file in (conf_dir() / group).glob("*.yaml"))


GROUPS = ("algorithm", "dataset", "partition", "model", "metrics", "study", "tracking")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("group", "option"),
    [(g, o) for g in (*GROUPS, *PLUGS) for o in options(g)],
)
def test_every_option_passes_its_own_check(group: str, option: str) -> None:
    config = compose([f"{group}={option}"])
    check(config)
    assert config.choices[group] == option


@pytest.mark.slow
@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["+foo=1"], ["foo"]),
        (["+train.raunds=3"], ["train.raunds", "Did you mean 'train.rounds'"]),
        (["train.rouns=3"], ["train.rouns", "Did you mean 'train.rounds'"]),
        (["train.optimizer=adam"], ["'train.optimizer'", "SGD", "train.momentum", "algorithm=fedadam"]),
        (["+train.lr_schedule=cosine"], ["'train.lr_schedule'", "train.lr_decay ** (t - 1)"]),
        (["+train.warmup_rounds=5"], ["'train.warmup_rounds'", "train.lr_decay"]),
        (["optimiser=adamw"], ["'optimiser'", "train.weight_decay"]),
        (["++algorithm.optimizer=adam"], ["'algorithm.optimizer'", "SGD"]),
        (["train.optimiser_stat=kept"], ["Did you mean 'train.optimiser_state'"]),
        (["++algorithm.nu=3", "algorithm=fedprox"], ["algorithm.nu", "Did you mean 'algorithm.mu'"]),
        (["algorithm=fedprx"], ["algorithm=fedprx", "Did you mean 'fedprox'", "fedavg"]),
        (["algoritm=fedavg"], ["algoritm", "Did you mean 'algorithm'"]),
        (["algorithm=fedavg,local"], ["algorithm=fedavg,local", "add -m"]),
        (["train=3"], ["option's name", "dataset=digits"]),
        (["data=3"], ["'data' is a group of keys"]),
        (["train.lr"], ["'train.lr' cannot be read as key=value"]),
        (["train.lr=${nothing}"], ["train.lr cannot be resolved", "'nothing' not found"]),
        (["~train.lr"], ["train.lr is missing", "0.05"]),
        (["train.lr=fast"], ["train.lr is 'fast'", "a number above 0"]),
        (["train.lr=0"], ["train.lr is 0", "above 0"]),
        (["train.lr=nan"], ["train.lr is nan"]),
        (["train.rounds=1.5"], ["train.rounds is 1.5", "a whole number at least 1"]),
        (["train.rounds=true"], ["train.rounds is true", "a whole number"]),
        (["train.participation=1.5"], ["train.participation is 1.5", "above 0 and at most 1"]),
        (["train.participation=0"], ["train.participation is 0", "above 0"]),
        (["train.chunk=0"], ["train.chunk is 0", "at least 1 or auto"]),
        (["train.chunk=atuo"], ["train.chunk is 'atuo'", "Did you mean 'auto'"]),
        (["train.weights=unifrm"], ["train.weights is 'unifrm'", "share, uniform", "Did you mean 'uniform'"]),
        (["train.optimiser_state=keep"], ["train.optimiser_state is 'keep'", "fresh, kept", "Did you mean 'kept'"]),
        (["train.lr_of=lastturn"], ["train.lr_of is 'lastturn'", "round, last_turn", "Did you mean 'last_turn'"]),
        (["train.first_round=everybody"], ["train.first_round is 'everybody'", "cohort, all"]),
        (["metrics.clients=trainde"], ["metrics.clients is 'trainde'", "all, trained", "Did you mean 'trained'"]),
        (["data.validation=1"], ["data.validation is 1", "below 1"]),
        (["data.root=5"], ["data.root is 5", "text that is not empty or null"]),
        (["data.download=5"], ["data.download is 5", "true or false"]),
        (["device=gpu"], ["device is 'gpu'", "auto, cpu, cuda"]),
        (["model.hidden=5"], ["model.hidden is 5", "a list"]),
        (["model.hidden=[a]"], ["model.hidden is [a]", "a list [a, b], each a whole number"]),
        (["model.hidden=[1.5]"], ["model.hidden is [1.5]", "each a whole number"]),
        (["dataset.mean=[x]"], ["dataset.mean is [x]", "each a number"]),
        (["dataset.mean=[nan]"], ["dataset.mean is [nan]", "each a number"]),
        (["dataset.name=mnist"], ["dataset.name is a part of dataset=digits"]),
        (["train.lr=inf"], ["train.lr is inf"]),
        (["train.lr=1e308"], ["train.lr is 1e+308", "below 1e+38"]),
        (["partition.alpha=inf"], ["partition.alpha is inf"]),
        (["partition=natural", "partition.clients=many"], ["partition.clients is 'many'", "a whole number or null"]),
        (["tracking.backend=wandb"], ["tracking.backend is 'wandb'", "mlflow, none"]),
        (["tracking.every=-1"], ["tracking.every is -1", "at least 0"]),
        (["tracking.uri=5"], ["tracking.uri is 5", "text or null"]),
        (["paths.runs=''"], ["paths.runs is ''", "not empty"]),
        (["metrics.subset=2"], ["metrics.subset is 2", "at most 1"]),
        (["metrics.subset_size=all"], ["metrics.subset_size is 'all'", "union, own"]),
        (["metrics.all=yes please"], ["metrics.all is 'yes please'", "true or false"]),
        (["metrics=fedgp"], ["metrics=fedgp", "Did you mean 'fedpg'"]),
        (["algorithm._target_=pflsweep.models.mlp.build"], ["algorithm=fedavg", "mlp.build is not a method"]),
        (["ala=on", "ala._target_=pflsweep.models.mlp.build"], ["ala=on", "mlp.build is not a method or plug-in"]),
        (["attack=gausian"], ["attack=gausian", "Did you mean 'gaussian'", "scaled"]),
        (["attack=scaled", "attack.share=0"], ["attack.share is 0", "above 0 and below 1"]),
        (["attack=scaled", "attack.factor=huge"], ["attack.factor is 'huge'", "a number"]),
        (["attack=gaussian", "attack.around=2"], ["attack.around is 2", "true or false"]),
        (["attack=scaled", "~attack.factor"], ["attack.factor is missing", "multiplied"]),
        (["privacy=dp_sgd", "privacy.clip=0"], ["privacy.clip is 0", "above 0"]),
        (["privacy=dp_sgd", "privacy.delta=1"], ["privacy.delta is 1", "below 1"]),
        (["privacy=dp_sgd", "++privacy.sigmas=1"], ["privacy.sigmas", "Did you mean 'privacy.sigma'"]),
        (["privacy=dp_sgd", "privacy._target_=pflsweep.algorithms.fedavg.FedAvg"], ["not a method or plug-in"]),
        (["algorithm._target_=FedAvg"], ["algorithm=fedavg", "`_target_` is 'FedAvg'", "my_package.MyClass"]),
        (["partition.clients=many"], ["partition.clients is 'many'", "a whole number"]),
        (["algorithm=fedprox", "algorithm.mu=-1"], ["algorithm.mu is -1", "at least 0"]),
        (["algorithm=fedprox", "~algorithm.mu"], ["algorithm.mu is missing", "proximal"]),
        (
            ["algorithm=fedprox", "algorithm._target_=no.such.Method"],
            ["'no.such' cannot be imported", "PYTHONPATH"],
        ),
    ],
)
def test_what_is_wrong_is_named_with_what_would_be_right(overrides: list[str], words: list[str]) -> None:
    with pytest.raises(UserError) as caught:
        check(compose(overrides))
    assert [word for word in words if word not in str(caught.value)] == []
    assert "\n" not in str(caught.value)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["partition.alpha=0"], ["partition.alpha is 0"]),
        (["partition.alpha=-1"], ["partition.alpha is -1"]),
        (["partition.clients=5000"], ["partition.clients is 5000", "1797"]),
        (
            ["algorithm=local", "ala=on"],
            ["ala=on does not go with algorithm=local", "fedavg, ", "fedrep", "fedala has"],
        ),
        (["attack=scaled", "partition=iid", "partition.clients=1"], ["attack.share is 0.1", "of 1 clients"]),
        (["algorithm=scaffold", "train.momentum=0.9"], ["train.momentum is 0.9", "train.momentum=0"]),
        (["model=cnn"], ["cnn"]),
        (["model=fasttext"], ["model=fasttext", "dataset=digits", "model=mlp"]),
    ],
)
def test_what_only_building_finds(overrides: list[str], words: list[str]) -> None:
    config = compose(overrides)
    check(config)
    with pytest.raises(UserError) as caught:
        build(config)
    assert [word for word in words if word not in str(caught.value)] == []


def test_whole_numbers_serve_as_numbers_and_all_methods_get_the_same_schedule() -> None:
    config = compose(["partition.alpha=1", "train.lr=1", "train.participation=1"])
    check(config)
    assert build(config).schedule.participation == 1


def test_the_initial_model_depends_on_the_seed_alone_and_draws_from_no_global_generator() -> None:
    torch.manual_seed(1)
    before = torch.get_rng_state()
    one, other, third = (
        build(compose([a, s]))
        for a, s in (("algorithm=local", "seed=1"), ("algorithm=fedavg", "seed=1"), ("ala=on", "seed=2"))
    )
    assert torch.equal(torch.get_rng_state(), before)
    w = [parts.task.vector(parts.model) for parts in (one, other, third)]
    assert torch.equal(w[0], w[1])
    assert not torch.equal(w[0], w[2])


def test_a_method_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_method.py").write_text(
        "from dataclasses import dataclass\n"
        "from pflsweep.algorithms.fedavg import FedAvg\n"
        "from pflsweep.methods.protocol import hyper\n"
        "@dataclass(frozen=True, kw_only=True)\n"
        "class Mine(FedAvg):\n"
        "    kind: str = hyper('which', choices=('a', 'b'))\n"
    )
    folder = tmp_path / "mine"
    (folder / "algorithm").mkdir(parents=True)
    file = folder / "algorithm" / "mine.yaml"
    monkeypatch.syspath_prepend(tmp_path)
    file.write_text("_target_: own_method.Mine\nkind: a\n")
    config = compose(["algorithm=mine"], folder)
    check(config)
    assert build(config).method.kind == "a"
    with pytest.raises(UserError, match=r"algorithm\.kind is 'c': it must be one of a, b"):
        check(compose(["algorithm=mine", "algorithm.kind=c"], folder))
    with pytest.raises(UserError, match="Did you mean 'mine'"):
        compose(["algorithm=mne"], folder)
    file.write_text("kind: a\n")
    with pytest.raises(UserError, match="`_target_` is missing"):
        check(compose(["algorithm=mine"], folder))


LOADER = """
import torch
from pflsweep.data.dataset import Dataset

def load(root, download, fault):
    x, y = torch.zeros(6, 2), torch.arange(6) % 2
    parts = {"x": x, "y": y, "train": 4, "classes": 2, **eval(fault, {"x": x, "y": y, "torch": torch})}
    if parts["train"] is None:
        return x, y
    one = torch.ones(2)
    return Dataset(name="own", scale=1.0, mean=0 * one, std=one, checksum="a", **parts)
"""
PARTITION = """
import numpy as np
from pflsweep.data.dataset import Rows

def split(dataset, seed, clients, rows):
    train, test = eval(rows, {"np": np})
    return (train, test) if clients == 0 else Rows(train, test)
"""


def own_data(folder: Path, fault: str = "{}", rows: str = "[[0, 2], [1]], [[4], [5]]", clients: int = 2) -> Any:
    """Build the federation of a loader and a partition of one's own."""
    (folder / "a_loader.py").write_text(LOADER)
    (folder / "a_partition.py").write_text(PARTITION)
    for group, text in {
        "dataset": f'_target_: a_loader.load\nfault: "{fault}"\n',
        "partition": f'_target_: a_partition.split\nclients: {clients}\nrows: "{rows}"\n',
    }.items():
        (folder / "mine" / group).mkdir(parents=True, exist_ok=True)
        (folder / "mine" / group / "own.yaml").write_text(text)
    return build(compose(["dataset=own", "partition=own"], folder / "mine")).federation


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("{'train': None}", "its loader returned tuple, and has to return a Dataset"),
        ("{'y': y[:5]}", "y is torch.int64 of shape [5], and has to be int64 [6]"),
        ("{'y': y.float()}", "y is torch.float32 of shape [6], and has to be int64 [6]"),
        ("{'x': x.numpy()}", "x and y have to be tensors: torch.from_numpy makes one of an array"),
        ("{'train': 'all'}", "train is 'all', and has to be from 1 to 6, the number of rows"),
        ("{'train': 7}", "train is 7, and has to be from 1 to 6, the number of rows"),
        ("{'y': y + 1}", "y has classes 1 to 2, and with classes=2 they go from 0 to 1"),
        ("{'x': x / x}", "x has a number that is not finite (nan or inf) in row 0"),
        ("{'owner': [0, 1]}", "owner is of shape [2], and has to be [6]"),
    ],
)
def test_what_is_wrong_with_a_loader_of_ones_own_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str, said: str
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UserError, match=re.escape(f"dataset=own: {said}")):
        own_data(tmp_path, fault)


@pytest.mark.parametrize(
    ("rows", "clients", "said"),
    [
        ("[[0]], [[4]]", 0, "it returned tuple, and a partition returns Rows(train, test)"),
        ("[[0, 2]], [[4], [5]]", 2, "partition must have one array per client in each of its parts"),
        ("[[0, 9], [1]], [[4], [5]]", 2, "train of client 0 names row 9, and own has rows 0 to 5"),
        ("[[0.5], [1]], [[4], [5]]", 2, "train of client 0 is of shape (1,) and float64"),
        ("[[0, 0], [1]], [[4], [5]]", 2, "train of client 0 names 0 twice"),
        ("[[0, 4], [1]], [[4], [5]]", 2, "client 0 has row 4 in two of train, test"),
    ],
)
def test_what_is_wrong_with_a_partition_of_ones_own_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: str, clients: int, said: str
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UserError, match=rf"partition=own: .*{re.escape(said)}"):
        own_data(tmp_path, rows=rows, clients=clients)


def test_data_and_clients_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    assert own_data(tmp_path).sizes.tolist() == [2, 1]
    one_is_not_tested = own_data(tmp_path, rows="[[0, 2], [1]], [[4], []]")
    assert [rows.tolist() for rows in one_is_not_tested.rows["test"]] == [[4], []]
    unsorted = own_data(tmp_path, rows="[[2, 0], [1]], [[5, 4], []]")
    assert [rows.tolist() for split in ("train", "test") for rows in unsorted.rows[split]] == [[0, 2], [1], [4, 5], []]
    assert own_data(tmp_path, "{'train': y.numpy()[:4].size + y.numpy()[0]}").sizes.tolist() == [2, 1], "int64 of NumPy"
    assert own_data(tmp_path, "{'x': x.double()}").gather(torch.tensor([0]))[0].dtype == torch.float32


def test_an_option_of_ones_own_is_never_overwritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once, the option `device: 3` of a user's partition reached its function as 'cpu'."""
    (tmp_path / "own_partition.py").write_text("def split(dataset, seed, clients, device): ...\n")
    (tmp_path / "partition").mkdir()
    (tmp_path / "partition" / "mine.yaml").write_text(
        "_target_: own_partition.split\nseed: null\nclients: 2\ndevice: 3\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UserError, match=r"partition\.device: 'device' is an argument that pflsweep passes to"):
        build(compose(["partition=mine"], tmp_path))


def test_an_option_of_ones_own_has_the_types_of_its_function(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`alpha: 1` of a float took no 0.5, and a reference had to stay text."""
    (tmp_path / "own_types.py").write_text("def split(dataset, seed, clients: int, alpha: float, salt: int): ...\n")
    (tmp_path / "partition").mkdir()
    (tmp_path / "partition" / "mine.yaml").write_text(
        "_target_: own_types.split\nseed: null\nclients: 2\nalpha: 1\nsalt: ${seed}\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    for words in ([], ["partition.alpha=0.5"], ["partition.salt=7"]):
        check(compose(["partition=mine", *words], tmp_path))
    for word, said in (("alpha=x", "it must be a number"), ("clients=0.5", "whole number"), ("salt=x", "whole number")):
        with pytest.raises(UserError, match=f"partition.*{said}"):
            check(compose(["partition=mine", f"partition.{word}"], tmp_path))


def test_an_option_may_be_edited_while_a_notebook_is_open(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    file = tmp_path / "model" / "mine.yaml"
    for widths in ("[8]", "[16]", "[8, 4]"):
        file.write_text(f"_target_: pflsweep.models.MLP\nhidden: {widths}\n")
        config = compose(["model=mine", "model.hidden=[2]"], tmp_path)
        assert config.values["model"]["hidden"] == [2]
        assert str(config.defaults["model"]["hidden"]) == widths


def test_files_of_ones_own_that_are_broken_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "needs_more.py").write_text("import not_installed\n")
    (tmp_path / "algorithm").mkdir()
    file = tmp_path / "algorithm" / "mine.yaml"
    file.write_text("_target_: needs_more.Mine\n")
    with pytest.raises(UserError, match=r"'needs_more' cannot be imported: .*No module named 'not_installed'"):
        check(compose(["algorithm=mine"], tmp_path))
    for broken, message in (("a: [b\nc: d", f"{file}.*line 2"), ("- a", "mine")):
        file.write_text(broken)
        with pytest.raises(UserError, match=message):
            check(compose(["algorithm=mine"], tmp_path))


def test_an_option_of_ones_own_is_read_as_hydra_reads_it(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("rate: 1e-3\n")
    assert read_option(file) == {"rate": 0.001}
    file.write_text("rate: 0.1\nrate: 0.2\n")
    with pytest.raises(UserError, match="found duplicate key rate"):
        read_option(file)
    for one, other in (("1", "1.0"), ("0.1", "0.10"), ("0.1", "'0.1'"), ("true", "1")):
        file.write_text(f"{one}: a\n{other}: b\n")
        with pytest.raises(UserError, match=f"{file}, line 2, .*found duplicate key"):
            read_option(file)
    file.write_text("a: &a {b: 1}\nc: {<<: *a, b: 2}\n1: d\n2: e\n")
    assert read_option(file) == {"a": {"b": 1}, "c": {"b": 2}, 1: "d", 2: "e"}


def test_a_notebook_refuses_what_only_a_sweep_can_do_and_folders_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="plan=true is a key of a sweep, not of a single trial: add -m"):
        compose(["plan=true"])
    with pytest.raises(UserError, match=f"There is no folder 'nope' of config groups in {Path.cwd()}: name one"):
        compose([], "nope")


def test_the_working_directory_does_not_matter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = compose(["seed=3"])
    monkeypatch.chdir(tmp_path)
    assert compose(["seed=3"]) == here


def test_conf_inside_the_package_goes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a wheel conf/ lies in the package."""
    shutil.copytree(conf_dir(), tmp_path / "conf")
    monkeypatch.setattr(resources, "__file__", str(tmp_path / "util" / "resources.py"))
    assert conf_dir() == tmp_path / "conf"
    check(compose([]))


@dataclass
class Hinted:
    rate: float = hyper("rate", low=0, high=1)
    maybe: float | None = hyper("maybe", low=0)
    kind: str = hyper("kind", choices=("a", "b"))


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("rate", [0, 0.5, 1], [-0.1, 1.1, None, "a", True]),
        ("maybe", [None, 2, 0.5], [-1, "a"]),
        ("kind", ["a", "b"], ["c", None, 1]),
    ],
)
def test_rules_from_a_dataclass(name: str, good: list, bad: list) -> None:
    hints = {"rate": float, "maybe": float | None, "kind": str}
    rule = field_rule(hints[name], hyperparameters(Hinted)[name])
    assert all(rule.allows(value) for value in good)
    assert not any(rule.allows(value) for value in bad)


def test_a_rule_says_what_it_allows() -> None:
    assert str(Rule((int,), low=1, choices=("auto",))) == "a whole number at least 1 or auto"
    assert str(Rule((float,), above=0, high=1, null=True)) == "a number above 0 and at most 1 or null"


def test_config_values_are_plain() -> None:
    config = compose(["train.lr=${train.lr_decay}"])
    assert isinstance(config, Config)
    assert type(config.values["model"]["hidden"]) is list
    assert config.values["train"]["lr"] == 1.0


def test_models_of_trials_that_are_threads_are_those_of_each_alone() -> None:
    """PyTorch has one generator for all threads, and a thread may draw while another one builds its model."""
    configs = [compose(["model=cnn", f"seed={seed}"]) for seed in range(4)]

    def first(config: Config) -> torch.Tensor:
        return torch.cat([piece.flatten() for piece in build_model(config, (1, 28, 28), 10).parameters()])

    alone = [first(config) for config in configs]
    for _ in range(3):
        with ThreadPoolExecutor(len(configs)) as threads:
            assert all(map(torch.equal, threads.map(first, configs), alone))
