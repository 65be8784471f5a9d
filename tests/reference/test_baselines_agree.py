"""The engine's FedAvgM, FedOpt, FedNova, MOON, FedNTD, FedLC, FedBN, FedDBE and kNN-Per against transcriptions."""

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from pflsweep.algorithms.fedavgm import FedAvgM
from pflsweep.algorithms.fedbn import FedBN
from pflsweep.algorithms.feddbe import FedDBE
from pflsweep.algorithms.fedlc import FedLC
from pflsweep.algorithms.fednova import FedNova
from pflsweep.algorithms.fedntd import FedNTD
from pflsweep.algorithms.fedopt import FedOpt
from pflsweep.algorithms.knnper import KnnPer
from pflsweep.algorithms.moon import Moon
from pflsweep.methods.task import Task
from tests.reference import losses, personal, servers
from tests.reference.common import layer_slices, perceptron
from tests.reference.test_engine_agrees import SIZES, WIDTHS, Run

OPT = {"beta_1": 0.8, "beta_2": 0.7, "tau": 0.05}


def features(w: Tensor, x: Tensor) -> Tensor:
    """Return the features that the head of Run's perceptron sees."""
    part = layer_slices(WIDTHS)[0]
    weight, bias = w[part][: WIDTHS[0] * WIDTHS[1]], w[part][WIDTHS[0] * WIDTHS[1] :]
    return torch.relu(x @ weight.reshape(WIDTHS[1], WIDTHS[0]).T + bias)


def head(w: Tensor, z: Tensor) -> Tensor:
    part = layer_slices(WIDTHS)[1]
    weight, bias = w[part][: WIDTHS[1] * WIDTHS[2]], w[part][WIDTHS[1] * WIDTHS[2] :]
    return z @ weight.reshape(WIDTHS[2], WIDTHS[1]).T + bias


def check(run: Run, expected: Iterator[Tensor]) -> None:
    assert any(len(set(a) & set(b)) < len(b) for a, b in pairwise(run.cohorts)), "all rounds have one cohort"
    for server, theirs in zip(run.servers, expected, strict=True):
        torch.testing.assert_close(server.w, theirs, rtol=0, atol=1e-9)


@pytest.mark.parametrize("chunk", [1, 5])
@pytest.mark.parametrize(
    ("method", "ours", "transcribed", "theirs"),
    [
        (FedAvgM, {"beta": 0.6, "global_lr": 0.8}, servers.fedavgm, {"beta": 0.6, "eta": 0.8}),
        *(
            (FedOpt, {"rule": rule, "global_lr": 0.2, **OPT}, servers.fedopt, {"rule": rule, "eta": 0.2, **OPT})
            for rule in ("adagrad", "adam", "yogi")
        ),
        (FedNova, {"mu": 0.0}, servers.fednova, {"mu": 0.0}),
    ],
    ids=["fedavgm", "adagrad", "adam", "yogi", "fednova"],
)
def test_servers(chunk: int, method: type, ours: dict, transcribed: Callable, theirs: dict) -> None:
    run = Run(method, chunk, **ours)
    check(run, transcribed(**run.arguments(), **theirs))


@pytest.mark.parametrize("chunk", [1, 5])
def test_fednova_with_a_proximal_term(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.reference.test_engine_agrees.MOMENTUM", 0.0)
    run = Run(FedNova, chunk, mu=0.5)
    check(run, servers.fednova(**run.arguments(), mu=0.5))


@pytest.mark.parametrize("chunk", [1, 5])
@pytest.mark.parametrize(
    ("method", "hyper"),
    [(Moon, {"mu": 2.0, "tau": 0.5}), (FedNTD, {"beta": 0.7, "tau": 2.0}), (FedLC, {"tau": 0.6})],
    ids=["moon", "fedntd", "fedlc"],
)
def test_losses(chunk: int, method: type, hyper: dict[str, Any]) -> None:
    run = Run(method, chunk, **hyper)
    given = run.arguments()
    del given["loss"]
    _, logits, _ = perceptron(WIDTHS)
    more = {"features": features} if method is Moon else {}
    check(run, getattr(losses, method.__name__.lower())(**given, **more, logits=logits, **hyper))


@pytest.mark.parametrize("chunk", [1, 5])
def test_fedbn(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run's perceptron has no normalisation layers: the first layer's biases take their place."""
    norm = set(range(WIDTHS[0] * WIDTHS[1], WIDTHS[0] * WIDTHS[1] + WIDTHS[1]))
    marked = property(lambda task: torch.tensor([j in norm for j in range(task.size)]))
    monkeypatch.setattr(Task, "norm", marked)
    run = Run(FedBN, chunk)
    run.check_personal(list(personal.fedbn(**run.arguments(), norm=norm)))


@pytest.mark.parametrize("chunk", [1, 5])
@pytest.mark.parametrize("mu", [1.0, 0.3])
def test_feddbe(chunk: int, mu: float) -> None:
    run = Run(FedDBE, chunk, kappa=0.4, mu=mu)
    given = run.arguments()
    del given["loss"]
    expected = list(personal.feddbe(**given, features=features, head=head, width=WIDTHS[1], kappa=0.4, mu=mu))
    check(run, (theirs["theta"] for theirs in expected))
    torch.testing.assert_close(run.servers[-1].consensus, expected[-1]["consensus"], rtol=0, atol=1e-10)
    for ours, theirs in zip(run.personal, expected, strict=True):
        for i in range(len(SIZES)):
            torch.testing.assert_close(ours[i][run.task.size :], theirs["bias"][i], rtol=0, atol=1e-9)
    assert (run.personal[-1][:, run.task.size :].abs() > 1e-3).any(), "no client has learnt an offset"


@pytest.mark.parametrize("weight", [0.7, None])
def test_knnper(weight: float | None) -> None:
    run = Run(KnnPer, 5, k=3, weight=weight, validation=0.3)
    _, logits, _ = perceptron(WIDTHS)
    w, method = run.servers[-1].w, run.simulation.verbs.method
    assert method is not None
    for i in range(len(SIZES)):
        x, y = run.federation.gather(torch.from_numpy(run.rows(i)))
        given = {"features": features, "logits": logits, "w": w, "k": 3}
        stored, best = (x, y), weight
        if weight is None:
            parts = run.data(1, i).holdout(0.3)
            rest, held = (np.searchsorted(run.rows(i), part._chunk.rows["train"][0]) for part in parts)
            stored = x[rest], y[rest]
            right = [
                int((personal.knnper(**given, store=stored, x=x[held], weight=k / 10).argmax(1) == y[held]).sum())
                for k in range(11)
            ]
            best = right.index(max(right)) / 10
        expected = personal.knnper(**given, store=stored, x=x, weight=best)
        torch.testing.assert_close(method.logits(run.personal[-1][i], x).exp(), expected, rtol=0, atol=1e-10)
