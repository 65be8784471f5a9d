"""The gradients that each method states relative to FedAvg's, for plans, compared with those that it computes."""

from typing import Any

import pytest
import torch

from pflsweep.commands.check import method_at
from pflsweep.config.hydra_loader import conf_dir, option_files, read_option
from pflsweep.conformance.case import Case, advance
from pflsweep.methods.task import Batch, Task

OPTIONS = list(option_files("algorithm"))
HEAD_ALONE = 1 / 3  # a gradient of the head is little more than a forward pass
# Not stated: the gradients of a second head, which are cheap, and are counted as whole ones here
SECOND_HEAD = ("fedrod", "as_run/pgfed_fedrod", "as_run/pfedplat_fedrod")
# Not stated: that rows which the method holds out are not trained on
HOLDOUT = (
    "fedfomo", "fedfomo_ma", "as_run/fedfomo_fedfomo", "as_run/fedfomo_fedfomo_ma", "as_run/pfllib_fedfomo",
    "as_run/pgfed_fedfomo", "knnper",
)  # fmt: skip
ROUNDED = ("fedavg_data",)  # a share of so few rows


def gradients(monkeypatch: pytest.MonkeyPatch, method: type, values: dict[str, Any], epochs: int) -> float:
    """Return the number of samples of which two rounds of training compute a gradient of the whole model."""
    counted, real, real_of = [], Task._grads, Task.value_and_grad_of

    def counting(task: Task, w: torch.Tensor, batch: Batch, loss: Any, part: slice | None, top: Any, *rest: Any) -> Any:
        if top is None:
            share = 1 if part is None or part.start < task.head.start else HEAD_ALONE
            counted.append(share * (len(batch.y) if batch.mask is None else int(batch.mask.sum())))
        return real(task, w, batch, loss, part, top, *rest)

    def counting_of(task: Task, loss: Any, w: torch.Tensor, batch: Batch) -> Any:
        counted.append(len(batch.y) if batch.mask is None else int(batch.mask.sum()))
        return real_of(task, loss, w, batch)

    with monkeypatch.context() as patched:
        patched.setattr(Task, "_grads", counting)
        patched.setattr(Task, "value_and_grad_of", counting_of)
        case = Case(lambda task, opt, _: method(task=task, opt=opt, epochs=epochs, **values), plain=True)
        advance(case.simulation(epochs=epochs, participation=1.0), 2)
    return sum(counted)


@pytest.mark.parametrize("epochs", [1, 3])
@pytest.mark.parametrize("name", OPTIONS)
def test_stated_gradients_are_those_computed(name: str, epochs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    values = read_option(conf_dir() / "algorithm" / f"{name}.yaml")
    method, fedavg = method_at(values.pop("_target_")), method_at("pflsweep.algorithms.fedavg.FedAvg")
    # One of these rounds trains; a plan counts each as if it did
    if "every" in values:
        values["every"] = 1
    # At most the number of clients
    if "models" in values:
        values["models"] = min(values["models"], 6)
    found = gradients(monkeypatch, method, values, epochs) / gradients(monkeypatch, fedavg, {}, epochs)
    tolerance = 0.35 if name in (*SECOND_HEAD, *HOLDOUT, *ROUNDED) else 0.06
    assert found == pytest.approx(method.relative_gradients(epochs, clients=6, cohort=6, **values), rel=tolerance)


def test_the_hessian_free_step_takes_four_gradients_of_three_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    values = read_option(conf_dir() / "algorithm" / "perfedavg.yaml") | {"form": "hf"}
    method, fedavg = method_at(values.pop("_target_")), method_at("pflsweep.algorithms.fedavg.FedAvg")
    found = gradients(monkeypatch, method, values, 3) / gradients(monkeypatch, fedavg, {}, 3)
    assert found == pytest.approx(method.relative_gradients(3, **values), rel=0.1) == pytest.approx(4 / 3, rel=0.1)


def test_a_public_set_is_counted_by_its_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of all rows are public: to six clients they are three times their own."""
    data, fedavg = (method_at(f"pflsweep.algorithms.{name}") for name in ("fedavg_data.FedAvgData", "fedavg.FedAvg"))
    found = gradients(monkeypatch, data, {"share": 0.5}, 2) / gradients(monkeypatch, fedavg, {}, 2)
    assert (
        found
        == pytest.approx(data.relative_gradients(2, clients=6, cohort=6, share=0.5), rel=0.1)
        == pytest.approx(3.5)
    )


def test_one_of_as_many_rounds_as_clients_trains() -> None:
    method = method_at("pflsweep.algorithms.as_run.pfedplat_fedfomo.PfedplatFedFomo")
    assert method.relative_gradients(1, clients=100, cohort=10, every=None) == 0.1
    assert method.relative_gradients(1, clients=100, cohort=10, every=4) == 0.25


def test_ten_epochs_on_the_head_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    fedrep, fedavg = (method_at(f"pflsweep.algorithms.{name}") for name in ("fedrep.FedRep", "fedavg.FedAvg"))
    values = {"head_epochs": 10}
    found = gradients(monkeypatch, fedrep, values, 5) / gradients(monkeypatch, fedavg, {}, 5)
    assert found == pytest.approx(fedrep.relative_gradients(5, **values)) == pytest.approx(1 + 2 / 3)
