"""The main use on real MNIST, small enough for CI."""

import pytest

import pflsweep

pytestmark = pytest.mark.slow

SMALL = [
    "dataset=mnist",
    "model=mlp",
    "partition=pathological",
    "train.rounds=3",
    "train.epochs=1",
    "train.participation=1.0",
    "train.lr=0.1",
    "tracking=none",
]


@pytest.mark.real
def test_personalisation_pays_on_mnist_of_two_classes_a_client(real_data, tmp_path, monkeypatch):
    """FedALA's pathological setting, reduced: two classes are easy for a client alone and hard for one common model."""
    real_data("MNIST")
    monkeypatch.chdir(tmp_path)
    last = {m: pflsweep.run([f"algorithm={m}", *SMALL]).personal_accuracy.last for m in ("local", "fedavg")}
    assert last["local"] > 0.95
    assert 0.3 < last["fedavg"] < last["local"]


@pytest.mark.real
def test_the_cnn_learns_mnist(real_data, tmp_path, monkeypatch):
    real_data("MNIST")
    monkeypatch.chdir(tmp_path)
    options = [
        "partition=iid",
        "partition.clients=50",
        "train.participation=0.1",
        "train.rounds=3",
        "train.lr=0.1",
    ]
    result = pflsweep.run(["algorithm=fedavg", "dataset=mnist", "tracking=none", *options])
    assert result.config["model"]["_option_"] == "cnn"
    assert result.personal_accuracy.last > 0.85


@pytest.mark.real
def test_cifar10_trains_and_improves(real_data, tmp_path, monkeypatch):
    real_data("cifar-10-batches-py")
    monkeypatch.chdir(tmp_path)
    options = ["partition.clients=50", "train.participation=0.06", "train.rounds=2", "train.epochs=1"]
    result = pflsweep.run(["algorithm=pgfed", "dataset=cifar10", "tracking=none", *options])
    loss = result.rounds["personal_loss"]
    assert loss.iloc[-1] < loss.iloc[0]
