"""A dataset of images selects the CNN; a model that the command names overrides it."""

import shutil
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir

CONF = Path(__file__).parents[2] / "conf"


@pytest.fixture(scope="module")
def conf(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("conf")
    for group in ("model", "dataset", "partition"):
        shutil.copytree(CONF / group, folder / group)
    (folder / "config.yaml").write_text("defaults: [model: mlp, dataset: digits, partition: dirichlet, _self_]")
    return folder


@pytest.mark.parametrize(
    ("overrides", "model"),
    [
        ([], "mlp"),
        (["dataset=synthetic"], "mlp"),
        (["dataset=mnist"], "cnn"),
        (["dataset=fmnist"], "cnn"),
        (["dataset=cifar10"], "cnn"),
        (["dataset=cifar100"], "cnn"),
        (["dataset=mnist", "model=mlp"], "mlp"),
        (["model=cnn_pg", "dataset=cifar10"], "cnn_pg"),
    ],
)
def test_a_dataset_selects_its_default_model(conf, overrides, model):
    with initialize_config_dir(str(conf), version_base="1.3"):
        config = compose("config", overrides)
    assert config.model._target_ == f"pflsweep.models.{model}.build"
