"""A case: one method with its hyperparameters, from which properties make simulations; and comparing simulations."""

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pflsweep.conformance.fixtures import fixture
from pflsweep.data.federation import Federation
from pflsweep.engine.simulation import Schedule, Simulation
from pflsweep.methods.optimizer import Sgd
from pflsweep.methods.protocol import Method, Plugin, Verbs
from pflsweep.methods.task import Task
from pflsweep.ops.vmap import leaves

EPOCHS = 2
SCHEDULE = Schedule(
    rounds=1000, participation=0.5, weights="share", epochs=EPOCHS, batch=4, lr=0.1, lr_decay=0.99,
    eval_every=1000, eval_batch=8, chunk=1,
)  # fmt: skip


class Sizes(NamedTuple):
    """The sizes that a formula for the communicated floats may use."""

    P: int  # parameters of the model
    extractor: int
    head: int
    M: int  # clients in a round
    N: int  # clients


@dataclass(frozen=True)
class Case:
    """A method to test.

    make: (task, opt, epochs) -> method. plain: whether the method refuses momentum and weight decay.
    tolerance: relative, for runs that differ only in the order of sums. traffic: floats that are sent up and down for a
    client in a round, after warm-up; None: not known. plugins: plug-ins beside the method's own. images: whether the
    model is the convolution with batch norm and dropout instead of the MLP. Other fields are as in Schedule and Task.
    """

    make: Callable[[Task, Sgd, int], Method]
    plain: bool = False
    tolerance: float = 1e-10
    traffic: Callable[[Sizes], float] | None = None
    plugins: Callable[[Task, Federation], Sequence[Plugin]] = lambda task, federation: ()
    optimiser_state: str = "fresh"
    workers: int = 1
    precision: str = "fp32"
    images: bool = False
    device: str = "cpu"

    def simulation(
        self,
        *,
        optimiser: type[Sgd] = Sgd,
        watch: Callable[[Verbs], Verbs] = lambda verbs: verbs,
        where: dict[str, Any] | None = None,
        **schedule: Any,
    ) -> Simulation:
        """Return a new simulation.

        optimiser: its class. watch: wraps the verbs. where: arguments of `fixture`. schedule: fields of SCHEDULE that
        differ.
        """
        dtype = torch.float32 if self.precision == "bf16" else torch.float64  # autocast does not convert doubles
        federation, model = fixture(**{"dtype": dtype, "images": self.images, "device": self.device, **(where or {})})
        task = Task(model, self.precision)
        opt = optimiser(0.0, 0.0) if self.plain else optimiser(momentum=0.9, weight_decay=1e-3)
        verbs = watch(Verbs.of(self.make(task, opt, EPOCHS), *self.plugins(task, federation)))
        settings = replace(SCHEDULE, optimiser_state=self.optimiser_state, workers=self.workers, **schedule)
        return Simulation(verbs, task, federation, settings, task.vector(model))


def advance(sim: Simulation, rounds: int) -> Simulation:
    """Run some rounds of a simulation, and return it."""
    steps = sim.run()
    for _ in range(rounds):
        next(steps)
    return sim


def sizes(sim: Simulation) -> Sizes:
    """Return the sizes of a simulation's model and federation."""
    task = sim.task
    head = task.head.stop - task.head.start
    return Sizes(task.size, task.size - head, head, sim.cohort_size, sim.federation.clients)


def packed(sim: Simulation) -> bytes:
    """Return a simulation's state, serialised as in a checkpoint."""
    file = io.BytesIO()
    torch.save(sim.state(), file)
    return file.getvalue()


def unpacked(sim: Simulation, state: bytes) -> Simulation:
    """Load a serialised state into a simulation, and return it."""
    sim.load(torch.load(io.BytesIO(state), weights_only=True))
    return sim


def kept_states(sim: Simulation) -> dict[str, Tensor]:
    """Return all states that a simulation keeps between rounds, by name."""
    ids = torch.arange(sim.federation.clients)
    everybody, optimisers = sim.clients.get(ids), () if sim.optimisers is None else sim.optimisers.get(ids)
    return {
        **{f"server state {k}": leaf.clone() for k, leaf in enumerate(leaves(sim.server))},
        **{f"client state {k}": leaf for k, leaf in enumerate(leaves(everybody))},
        **{f"optimiser state {k}": leaf for k, leaf in enumerate(optimisers)},
        "round of the last turn": sim.last.clone(),
        **{f"private training, {name}": part.clone() for name, part in sim.spent._asdict().items()},
    }


def models(sim: Simulation) -> dict[str, Tensor]:
    """Return all models that are evaluated, by name."""
    common = sim.global_model()
    found = {"personal models": torch.stack(list(sim.personal_models()))}
    return found if common is None else {**found, "global model": common.clone()}


def everything(sim: Simulation) -> dict[str, Tensor]:
    """Return all states that a simulation keeps and all models that are evaluated, by name."""
    return {**models(sim), **kept_states(sim)}


def assert_same(got: dict[str, Tensor], wanted: dict[str, Tensor], when: str, tolerance: float = 0.0) -> None:
    """Raise AssertionError unless both have the same tensors by the same names.

    when: where the tensors come from, for the message. tolerance: relative to the largest entry; 0: bitwise.
    """
    assert got.keys() == wanted.keys(), f"{when}: {sorted(got)} instead of {sorted(wanted)}"
    for name, value in got.items():
        reason = difference(value, wanted[name], tolerance)
        assert not reason, f"{when}: {name} {reason}"


def difference(a: Tensor, b: Tensor, tolerance: float = 0.0) -> str:
    """Return how tensor a differs from b, for a message; "" if they are the same within a relative tolerance."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return f"is {a.dtype} {list(a.shape)} instead of {b.dtype} {list(b.shape)}"
    if torch.allclose(a, b, rtol=0, atol=0, equal_nan=True):
        return ""
    if not a.is_floating_point():
        return "has other values"
    if bool((a.isnan() != b.isnan()).any()):
        return "has NaN in other places"
    finite = b.isfinite()
    if not torch.equal(a[~finite].nan_to_num(), b[~finite].nan_to_num()) or not bool(a[finite].isfinite().all()):
        return "has infinity in other places"
    if not bool(finite.any()):
        return ""
    scale = max(float(b[finite].abs().max()), 1e-3)
    gap = float((a - b)[finite].abs().max())
    return "" if gap <= tolerance * scale else f"differs by {gap / scale:.1e} of its largest entry"
