"""Compiled gradients equal those of eager code, and are compiled once for all tasks that compute the same."""

import shutil
from typing import Any

import pytest
import torch
from torch import Tensor, library, nn

from pflsweep.conformance.fixtures import CLASSES, fixture
from pflsweep.methods.optimizer import Sgd
from pflsweep.methods.task import Batch, Task
from pflsweep.models.blocks import model_of
from pflsweep.ops import compiled, random
from pflsweep.ops.vmap import per_client, tree_map
from pflsweep.util.errors import UserError

SIZE, CLIENTS = 5, 3
pytestmark = pytest.mark.skipif(shutil.which("c++") is None, reason="PyTorch compiles with a C++ compiler")


@pytest.fixture(autouse=True)
def made(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Record what is given to the compiler; programs of earlier tests are dropped."""
    graphs, compiler = [], torch.compile

    def counted(graph: Any, **options: Any) -> Any:
        graphs.append(graph)
        return compiler(graph, **options)

    monkeypatch.setattr(torch, "compile", counted)
    monkeypatch.setattr(compiled, "_compiled", {})
    return graphs


def task_of(size: int = SIZE) -> Task:
    """Return a task with convolution, batch norm and dropout."""
    return Task(fixture(images=True).model, compiled=size)


def cohort(padded: bool = True) -> Batch:
    """Return a batch of each client, of which all but the first lack rows."""
    draw = torch.Generator().manual_seed(3)
    x = torch.randn(CLIENTS, SIZE, 1, 6, 6, generator=draw, dtype=torch.float64)
    y = torch.arange(CLIENTS * SIZE).view(CLIENTS, SIZE) % CLASSES
    mask = (torch.arange(SIZE) < torch.tensor([[SIZE], [SIZE - 1], [2]])) if padded else None
    keys = torch.stack([random.tensor_key(0, "step", c) for c in range(CLIENTS)])
    return Batch(x, y, mask, None, keys)


def models_of(task: Task) -> Tensor:
    w = task.vector(task.model)
    return torch.stack([w, w * 1.1, w * 0.9])


class Asks:
    """Gradients that a method may ask a task for, lifted to several clients."""

    def __init__(self, task: Task, **how: Any) -> None:
        self.task, self.how = task, how

    @per_client
    def gradient(self, w: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        return self.task.value_and_grad(w, batch, **self.how)

    @per_client
    def step(self, w: Tensor, state: Tensor, batch: Batch) -> Tensor:
        return Sgd(0.0, 0.0).descend(self.task, w, state, batch, 0.1)[0]


def only(clients: slice, batch: Batch) -> Batch:
    """Select some clients."""
    return tree_map(lambda v: v[clients], batch)


def require_the_eager_ones(*chunks: slice, **how: Any) -> None:
    eager, ours = task_of(0), task_of()
    w, batch = models_of(eager), cohort()
    for clients in chunks:
        wanted, got = (Asks(task, **how).gradient(w[clients], only(clients, batch)) for task in (eager, ours))
        for a, b in zip(got, wanted, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


@pytest.mark.slow
def test_they_are_the_eager_ones(made: list[Any]) -> None:
    require_the_eager_ones(slice(None))
    assert made


@pytest.mark.slow
@pytest.mark.usefixtures("traced")
@pytest.mark.parametrize("part", [None, "head", "extractor"])
def test_their_traces_are_too(part: str | None, made: list[Any]) -> None:
    how = {} if part is None else {"part": getattr(task_of(), part)}
    require_the_eager_ones(slice(None), slice(1), **how)
    assert len(made) == 2, "one for a client, one for several"


@pytest.mark.usefixtures("traced")
def test_a_step_without_a_vector_takes_them_too(made: list[Any]) -> None:
    eager, ours = task_of(0), task_of()
    batch = only(slice(1), cohort(padded=False))
    stepped = [Asks(task).step(models_of(task)[:1], torch.zeros(1, 0), batch) for task in (eager, ours)]
    torch.testing.assert_close(stepped[1], stepped[0], rtol=1e-12, atol=1e-12)
    assert made


def test_a_batch_that_is_cut_short_is_eager(made: list[Any]) -> None:
    eager, ours, batch = task_of(0), task_of(SIZE + 1), cohort()
    got, wanted = (Asks(task).gradient(models_of(task), batch)[1] for task in (ours, eager))
    assert torch.equal(got, wanted)
    assert not made


@pytest.mark.slow
@pytest.mark.usefixtures("traced")
def test_tasks_that_compute_the_same_share_a_program(made: list[Any]) -> None:
    for _ in range(2):
        task = task_of()
        for _ in range(2):
            Asks(task).gradient(models_of(task), cohort())
    assert len(made) == 1
    other = task_of()
    other.model[1][3].p = 0.5
    Asks(other).gradient(models_of(other), cohort())
    assert len(made) == 2, "another dropout is another program, though its shapes are the same"


class Shifted(nn.Module):
    """A module with a tensor that is no parameter."""

    def __init__(self, shift: float) -> None:
        super().__init__()
        self.register_buffer("shift", torch.tensor([shift], dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return (x + self.shift).tanh()


@pytest.mark.usefixtures("traced")
def test_models_that_hold_other_numbers_share_nothing() -> None:
    batch = only(slice(1), cohort(padded=False))
    for shift in (0.0, 1.0):
        torch.manual_seed(0)
        model = model_of(fc=nn.Sequential(nn.Flatten(), Shifted(shift)), head=nn.Linear(36, CLASSES)).double()
        eager, ours = Task(model), Task(model, compiled=SIZE)
        got, wanted = (Asks(task).gradient(task.vector(model)[None], batch)[1] for task in (ours, eager))
        torch.testing.assert_close(got, wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("size", [24, 33])
def test_draws_are_the_same_to_the_last_bit(size: int) -> None:
    def drawn(key: Tensor) -> Tensor:
        return random.uniform(random.fold(key, 2), (size,))

    keys = torch.tensor([0, 1, -5, 2**62 + 7])
    program = compiled._program(torch.func.vmap(drawn), [keys])
    assert torch.equal(program(keys), torch.func.vmap(drawn)(keys))


@library.custom_op("pflsweep_tests::room", mutates_args=())
def room(x: Tensor, clients: int) -> Tensor:
    """Return x where the memory is enough for that many clients, else raise."""
    if x.shape[0] > clients:
        raise torch.OutOfMemoryError("no room for so many")
    return x.clone()


room.register_fake(lambda x, clients: torch.empty_like(x))
room.register_autograd(lambda ctx, g: (g, None))
room.register_vmap(lambda info, in_dims, x, clients: (room(x.movedim(in_dims[0], 0), clients), 0))


class Large(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.ops.pflsweep_tests.room(x, 2) if x.dim() else x


def test_a_chunk_that_does_not_fit_is_cut_in_two() -> None:
    """Where a compiled program runs out of memory, at its first run or later, the error is that of eager code."""
    model = model_of(fc=nn.Sequential(nn.Flatten(), Large()), head=nn.Linear(36, CLASSES)).double()
    asks, batch = Asks(Task(model, compiled=SIZE)), cohort()
    w = asks.task.vector(model).expand(CLIENTS, -1)
    for _ in range(2):
        with pytest.raises(torch.OutOfMemoryError, match="no room for so many"):
            asks.gradient(w, batch)
    asks.gradient(w[:2], only(slice(2), batch))


def test_an_error_of_a_program_that_runs_is_its_own() -> None:
    task = task_of()
    asks, batch = Asks(task), only(slice(1), cohort(padded=False))
    asks.gradient(models_of(task)[:1], batch)
    with pytest.raises((IndexError, RuntimeError), match=r"out of bounds"):
        asks.gradient(models_of(task)[:1], batch._replace(y=batch.y + CLASSES))


def test_training_and_evaluation_share_a_program(made: list[Any]) -> None:
    task = task_of()
    asks, batch = Asks(task), only(slice(1), cohort(padded=False))
    asks.gradient(models_of(task)[:1], batch)
    compiles = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    with torch.no_grad():
        asks.gradient(models_of(task)[:1], batch)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == compiles > 0


@pytest.mark.slow
@pytest.mark.usefixtures("traced")
def test_in_bf16_as_eager(made: list[Any]) -> None:
    eager, ours = (Task(fixture(images=True, dtype=torch.float32).model, "bf16", size) for size in (0, SIZE))
    batch = tree_map(lambda v: v.float() if v.is_floating_point() else v, cohort())
    got, wanted = (Asks(task).gradient(models_of(task), batch)[1] for task in (ours, eager))
    torch.testing.assert_close(got, wanted, rtol=0.05, atol=0.02)
    assert made


class Decides(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x if x.sum() > 0 else -x


def test_a_model_that_cannot_be_compiled_says_so() -> None:
    task = Task(model_of(fc=nn.Sequential(Decides(), nn.Flatten()), head=nn.Linear(36, CLASSES)).double(), "fp32", SIZE)
    batch = cohort(padded=False)
    with pytest.raises(
        UserError, match=r"train\.compile is true, but PyTorch cannot compile the gradient.*compile=false"
    ):
        task.grad(task.vector(task.model), Batch(batch.x[0], batch.y[0], None, None, None))
