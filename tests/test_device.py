"""What reaches a GPU, tested by a device that every machine has: all tensors are on it, and numbers equal the CPU's."""

import signal
from collections.abc import Callable, Iterator
from functools import partial

import pandas as pd
import pytest
import torch

from pflsweep.config.compose import compose
from pflsweep.conformance.case import advance, assert_same, models
from pflsweep.conformance.fake_device import NAME, another_device
from pflsweep.conformance.fixtures import CLIENTS
from pflsweep.engine.simulation import Simulation
from pflsweep.engine.stack import StackMember, run_stack
from pflsweep.trial import build
from pflsweep.trial.result import Result
from pflsweep.trial.run import Stopped, run_trial
from tests.conformance.test_methods import case
from tests.trial.test_run import FakeTracker
from tests.trial.test_run import assert_same as assert_same_result

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("elsewhere")]
SMALL = (
    "tracking=none dataset=digits model=mlp model.hidden=[16] partition.clients=6 partition.least=20 train.rounds=2 "
    "train.epochs=1 train.threads=1 train.chunk=6 "
)
CNN = SMALL.replace("digits", "mnist").replace("mlp model.hidden=[16]", "cnn_norm") + "data.limit=300 "


@pytest.fixture
def device() -> Iterator[str]:
    with another_device() as name:
        yield name


def on_cpu(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: tensor.cpu() for name, tensor in tensors.items()}


def test_tensors_of_two_devices_do_not_meet(device: str) -> None:
    there, here = torch.ones(2, device=device), torch.ones(2)
    with pytest.raises(RuntimeError, match=r"aten::add: a tensor \[2\] is on the CPU and"):
        there + here
    with pytest.raises(RuntimeError, match="aten::index_select"):
        there.index_select(0, torch.tensor([1]))
    with pytest.raises((TypeError, RuntimeError), match="numpy"):
        there.numpy()
    # A number may be combined with tensors of any device
    assert (there + torch.tensor(1.0)).tolist() == [2, 2]
    # And so may an index
    assert there[torch.tensor([1])].tolist() == [1]
    assert (there.cpu() + here).tolist() == [2, 2]


def test_gradients_of_many_are_those_of_each(device: str) -> None:
    w, x = torch.rand(3, 4), torch.rand(3, 4)

    def loss(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return (w * x).sum().exp()

    got = torch.func.vmap(torch.func.grad(loss))(w.to(device), x.to(device))
    assert got.device.type == NAME
    assert torch.equal(got.cpu(), torch.func.vmap(torch.func.grad(loss))(w, x))


@pytest.mark.parametrize("name", ["fedrep", "perfedavg", "fedala", "pgfed", "apfl", "fedpg"])
def test_stacked_trials_train_there_as_on_the_cpu(name: str) -> None:
    def trial(number: int, device: str) -> Simulation:
        how = {"where": {"device": device, "seed": number}, "lr": 0.1 - 0.02 * number}
        return case(name).simulation(chunk=CLIENTS, **how)

    def stacked(sim: Simulation, member: StackMember) -> dict[str, torch.Tensor]:
        # Each thread has its own device
        with another_device():
            member.join(sim)
            return on_cpu(models(advance(sim, 2)))

    with another_device() as device:
        sims = [trial(number, device) for number in range(2)]
    ended, stack = run_stack([partial(stacked, sim) for sim in sims])
    assert not stack.refused
    for number, got in enumerate(ended):
        assert isinstance(got, dict), got
        assert_same(got, models(advance(trial(number, "cpu"), 2)), f"trial {number}", 1e-9)


TRIALS = {
    "all metrics": SMALL + "metrics.all=true metrics.trained=true metrics.subset=0.5",
    "new clients": SMALL + "data.new=2 data.new_epochs=2",
    "malicious clients": SMALL + "attack=scaled",
    "noise": SMALL + "attack=gaussian",
    "private": SMALL + "privacy=dp_sgd",
    "a plug-in": SMALL + "algorithm=ditto ala=on",
    "kept states": SMALL + "train.sampling=dirichlet train.optimiser_state=kept train.momentum=0.9",
    "other targets": SMALL + "data.targets=permuted data.shuffle=1",
    "models": SMALL + "algorithm=splitgp checkpoint.models=true",
    "personal steps": SMALL + "study=personal_steps algorithm=perfedavg",
    "trajectory": SMALL + "study=trajectory study.client=1 algorithm=fedala",
    "weight learning": SMALL + "study=weight_learning study.client=1 algorithm=fedala",
}
IMAGES = {
    "augmented": CNN + "dataset.augment=crop_flip",
    "batch norm": CNN + "model.norm=batch algorithm=fedbabu",
}


def here(words: str, runs: str = "here", stop: bool = False) -> Result:
    """Run a trial on the CPU. stop: by Ctrl-C in the second round."""
    tracker = FakeTracker(2 if stop else 0, lambda: signal.raise_signal(signal.SIGINT))
    return run_trial(compose([*words.split(), f"paths.runs={runs}"]), lambda config, record: tracker)


@pytest.fixture
def there(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Run the same trial on the other device."""

    def run(words: str, runs: str = "there", stop: bool = False) -> Result:
        with monkeypatch.context() as patched, another_device() as device:
            patched.setattr(build, "device_of", lambda name: device)
            return here(words, runs, stop)

    return run


@pytest.mark.parametrize("name", TRIALS)
def test_a_trial_there_is_that_on_the_cpu(name: str, there: Callable[..., Result]) -> None:
    ours = there(TRIALS[name])
    assert ours.record.meta["environment"]["device"].startswith(NAME)
    assert_same_result(ours, here(TRIALS[name]))


@pytest.mark.parametrize("name", IMAGES)
def test_a_trial_on_images_is_nearly(name: str, there: Callable[..., Result], real_data: Callable) -> None:
    """Numbers are nearly equal, since a CPU has its own algorithms for convolution."""
    real_data("MNIST")
    columns = ["global_loss", "personal_loss", "images"]
    ours, cpu = (run(IMAGES[name]).rounds[columns] for run in (there, here))
    pd.testing.assert_frame_equal(ours, cpu, rtol=1e-5)


@pytest.mark.parametrize("name", ["a plug-in", "kept states", "models", "trajectory"])
@pytest.mark.parametrize("first", ["there", "here"])
def test_a_trial_goes_on_elsewhere(name: str, first: str, there: Callable[..., Result]) -> None:
    """A trial is continued on a machine without a GPU from the checkpoint of one with a GPU, and the reverse."""
    words = TRIALS[name].replace("train.rounds=2", "train.rounds=4") + " checkpoint.every=0"
    before, after = (there, here) if first == "there" else (here, there)
    with pytest.raises(Stopped, match="after round 2 of 4"):
        before(words, "moved", stop=True)
    assert_same_result(after(words, "moved"), here(words))
