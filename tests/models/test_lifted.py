"""Every model under torch.func.vmap gives the same loss and gradient for each client as in a loop."""

import pytest
import torch
from torch import Tensor, nn

from pflsweep.methods.task import Batch, Task
from pflsweep.models import (
    char_lstm,
    cnn,
    cnn_norm,
    cnn_pg,
    fasttext,
    lenet5,
    mlp,
    nfresnet18,
    nfresnet_pg,
    tf_cnn,
    torchvision,
    vgg11,
)
from pflsweep.ops.random import fold, tensor_key
from pflsweep.ops.vmap import per_client

SMALL, LARGE = (3, 16, 16), (3, 32, 32)
MODELS = {
    "mlp": (lambda: mlp.build(SMALL, 4, [6]), SMALL),
    "cnn": (lambda: cnn.build(SMALL, 4), SMALL),
    "cnn_norm group": (lambda: cnn_norm.build(SMALL, 4, "group", 8), SMALL),
    "cnn_norm batch": (lambda: cnn_norm.build(SMALL, 4, "batch", 8), SMALL),
    "cnn_pg": (lambda: cnn_pg.build(SMALL, 4, (0.2, 0.5)), SMALL),
    "lenet5": (lambda: lenet5.build(SMALL, 4), SMALL),
    "tf_cnn": (lambda: tf_cnn.build((3, 18, 18), 4), (3, 18, 18)),
    "fasttext": (lambda: fasttext.build((9,), 4, 30, 5), (9,)),
    "char_lstm": (lambda: char_lstm.build((9,), 4, 30, 5, 6), (9,)),
}
HEAVY = {
    "nfresnet18": (lambda: nfresnet18.build(SMALL, 4, 0.2), SMALL),
    "nfresnet_pg": (lambda: nfresnet_pg.build(SMALL, 4, 0.2), SMALL),
    "vgg11 none": (lambda: vgg11.build(LARGE, 4, "none", 32, 0.5), LARGE),
    "vgg11 batch": (lambda: vgg11.build(LARGE, 4, "batch", 32, 0.5), LARGE),
    **{
        f"{name} {norm}": (lambda name=name, norm=norm: torchvision.build(LARGE, 4, name, norm, 8), LARGE)
        for name, norm in [
            ("resnet18", "group"),
            ("resnet18", "batch"),
            ("mobilenet_v3_small", "group"),
            ("mobilenet_v3_small", "batch"),
            ("convnext_tiny", "group"),
            ("densenet121", "group"),
            ("efficientnet_b0", "group"),
            ("googlenet", "group"),
            ("mnasnet0_5", "group"),
            ("mobilenet_v2", "group"),
            ("regnet_y_400mf", "group"),
            ("shufflenet_v2_x0_5", "group"),
        ]
    },
}
CASES = [
    *(pytest.param(*case, id=name) for name, case in MODELS.items()),
    *(pytest.param(*case, id=name, marks=pytest.mark.slow) for name, case in HEAVY.items()),
]


class Gradient:
    def __init__(self, task: Task) -> None:
        self.task = task

    @per_client
    def of(self, w: Tensor, rows: Batch) -> tuple[Tensor, Tensor]:
        return self.task.value_and_grad(w, rows)


def rows_of(shape: tuple[int, ...]) -> Batch:
    """Return two clients' batches of three samples; the second client's last one is padding."""
    draw = torch.Generator().manual_seed(1)
    if len(shape) == 1:
        x = torch.randint(30, (2, 3, *shape), generator=draw, dtype=torch.int32)
    else:
        x = torch.randn(2, 3, *shape, generator=draw)
    mask = torch.tensor([[1, 1, 1], [1, 1, 0]]).bool()
    return Batch(x, torch.tensor([[0, 1, 2], [3, 0, 1]]), mask, None, fold(tensor_key(0, "t"), torch.arange(2)))


@pytest.mark.slow
@pytest.mark.parametrize(("build", "shape"), CASES)
def test_the_lifted_gradient_is_the_loops(build, shape):
    torch.manual_seed(0)
    model: nn.Sequential = build().double()
    task, rows = Task(model), rows_of(shape)
    if rows.x.is_floating_point():
        rows = rows._replace(x=rows.x.double())
    w = task.vector(model)
    models = torch.stack([w, w + 0.01 * torch.randn_like(w)])
    gradient = Gradient(task)
    losses, grads = gradient.of(models, rows)
    for k in range(2):
        one = Batch(*(None if part is None else part[k : k + 1] for part in rows[:5]))
        loss, grad = gradient.of(models[k : k + 1], one)
        torch.testing.assert_close(losses[k], loss[0], rtol=1e-8, atol=1e-10)
        assert float((grads[k] - grad[0]).norm() / grad[0].norm()) < 1e-6
        assert all(bool(grad[0][block].any()) for block in task.blocks), "each block is trained"


@pytest.mark.parametrize(("build", "shape"), [pytest.param(*case, id=name) for name, case in MODELS.items()])
def test_gradients_in_bf16_are_rounded_and_nothing_else_is(build, shape):
    torch.manual_seed(0)
    model: nn.Sequential = build()
    w, rows = Task(model).vector(model), rows_of(shape)
    models, wanted = torch.stack([w, w]), Gradient(Task(model)).of(torch.stack([w, w]), rows)
    for precision in ("fp32", "bf16"):
        task = Task(model, precision)
        found = Gradient(task).of(models, rows)
        assert found[0].dtype == found[1].dtype == torch.float32
        for k in range(2):
            one = Batch(*(None if part is None else part[k : k + 1] for part in rows[:5]))
            alone = Gradient(task).of(models[k : k + 1], one)[1][0]
            apart, rounding = ((found[1][k] - other).norm() / alone.norm() for other in (alone, wanted[1][k]))
            assert float(apart) < (1e-5 if precision == "fp32" else 0.2), "a rounded maximum has other places"
            assert (1e-5 < float(rounding) < 0.2) if precision == "bf16" else float(rounding) == 0
        if not task.calibrated:
            assert torch.equal(task.logits(w, rows.x[0]), Task(model).logits(w, rows.x[0])), "evaluation is in fp32"
