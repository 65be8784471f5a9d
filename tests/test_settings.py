"""`+setting=` gives the setting of a paper's table: every row of settings.csv is a few overrides away from it."""

from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from pflsweep.config.compose import Config, compose
from pflsweep.config.hydra_loader import conf_dir
from pflsweep.config.schema import check

PRINTED = pd.read_csv(Path(__file__).parents[1] / "reports" / "paper" / "settings.csv", dtype=str)
OPTIONS = sorted(file.stem for file in (conf_dir() / "setting").glob("*.yaml"))
DATASETS = {"tinyimagenet": "tiny_imagenet", "officehome": "office_home"}
MODELS = {("fedpg", "cnn"): "cnn_pg"}


def overrides(row: Any) -> list[str]:
    """Return the command-line overrides for a row of the CSV file."""
    dataset = DATASETS.get(row.dataset, row.dataset)
    made: dict[str, Any] = {"+setting": row.paper, "dataset": dataset}
    if row.dataset == "tinyimagenet":
        made["dataset.val"] = "false"
    if row.paper == "pgfed":
        _pgfed(row, made)
    elif row.paper == "fedala":
        _fedala(row, made)
    elif row.paper == "fedpg":
        made["+setting"] = {"fmnist": "fedpg_fmnist", "cifar100": "fedpg_cifar100"}.get(row.dataset, "fedpg")
        made |= {"train.participation": row.participation} if row.participation != "ns" else {}
        made |= {"A1": {"attack": "gaussian"}, "A2": {"attack": "scaled"}}.get(row.setting, {})
    else:
        _fedfomo(row, made)
    return [f"{key}={value}" for key, value in made.items()]


def _pgfed(row: Any, made: dict[str, Any]) -> None:
    if row.table == "6":
        made["+setting"] = "pgfed_office"
        return
    made["partition.clients"] = row.clients
    # Table 7, on speed, is the only one with batches of 128
    if row.table == "7":
        made["train.batch"] = row.batch_size.split()[0]
    if row.table == "5":
        made["+setting"] = "pgfed_organ"
        made |= {"partition.alpha": row.partition.split()[-1], "train.participation": row.participation}


def _fedala(row: Any, made: dict[str, Any]) -> None:
    if row.partition.startswith("pathological"):
        made |= {"+setting": "fedala_pathological", "partition.classes_per_client": row.setting.removeprefix("pat")}
        made |= {"train.lr": "0.1"} if row.dataset == "mnist" else {}
        return
    made["+setting"] = {"resnet18": "fedala_tiny_resnet", "fasttext": "fedala_agnews"}.get(row.model, "fedala")
    made |= {"partition.clients": row.clients, "partition.alpha": row.partition.split()[-1]}


def _fedfomo(row: Any, made: dict[str, Any]) -> None:
    if row.partition.startswith("pathological"):
        made["+setting"] = "fedfomo_pathological" + ("_100" if row.clients == "100" else "")
        made |= {"train.lr": "0.01"} if row.dataset == "mnist" else {}
        return
    words = row.setting.split(";")
    made["partition.clusters"] = words[0].removeprefix("latent")
    if "out_of_local" in words:
        made["+setting"] = "fedfomo_out"
    elif len(words) == 3:
        made |= {"+setting": "fedfomo_dp", "privacy.sigma": words[1].removeprefix("sigma")}


@pytest.mark.slow
@pytest.mark.parametrize(
    "row", list(PRINTED.itertuples()), ids=lambda r: f"{r.paper}-{r.table}-{r.dataset}-{r.setting}"
)
def test_a_row_is_a_few_overrides_away(row: Any) -> None:
    config = checked(tuple(overrides(row)))
    train, partition = config.values["train"], config.values["partition"]
    assert config.choices["dataset"] == DATASETS.get(row.dataset, row.dataset)
    assert config.choices["model"] == MODELS.get((row.paper, row.model), row.model)
    assert partition["clients"] == number(row.clients)
    assert train["epochs"] == number(row.local_epochs)
    said = {"participation": row.participation, "rounds": row.rounds, "batch": row.batch_size, "lr": row.lr}
    said |= {"momentum": row.momentum, "weight_decay": row.weight_decay, "lr_decay": row.lr_decay}
    for key, printed in said.items():
        value = number(printed)
        if value is not None:
            assert train[key] == value, f"{key}: {train[key]} beside {printed}"
    if "dirichlet" in row.partition:
        assert partition["alpha"] == number(row.partition.split("dirichlet")[1])
    if "classes per client" in row.partition:
        assert partition["classes_per_client"] == number(row.partition.split(",")[1])


@cache
def checked(chosen: tuple[str, ...]) -> Config:
    config = compose(list(chosen))
    check(config)
    return config


def number(printed: str) -> float | None:
    """Return the number with which a text begins; None where there is none."""
    try:
        return float(printed.split()[0])
    except ValueError:
        return None


def test_the_tables_use_every_setting() -> None:
    used = {overrides(row)[0].removeprefix("+setting=") for row in PRINTED.itertuples()}
    assert used | {"pgfed_new"} == set(OPTIONS), "pgfed_new is a figure's"


def test_a_setting_yields_to_the_command_line() -> None:
    config = compose(["+setting=pgfed", "dataset=cifar100", "model=resnet18", "train.rounds=5"])
    assert (config.choices["dataset"], config.choices["model"]) == ("cifar100", "resnet18")
    assert config.values["train"]["rounds"] == 5
    assert config.values["train"]["momentum"] == 0.9


def test_new_clients_of_figure_4() -> None:
    values = compose(["+setting=pgfed_new"]).values
    assert (values["partition"]["clients"], values["data"]["new"], values["train"]["rounds"]) == (100, 20, 150)
