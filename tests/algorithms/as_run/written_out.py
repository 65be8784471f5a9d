"""A client's training written out in plain torch, with parameters named as in torch, to compare variants with."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.func import functional_call

from pflsweep.data.loader import ClientData
from tests.algorithms.helpers import EVERYBODY, FEDERATION, NETWORK

TASK, W0 = NETWORK
BATCH, LR = 4, 0.1


def model() -> nn.Sequential:
    return TASK.model


def named(w: Tensor) -> dict[str, Tensor]:
    return {name: piece.clone() for name, piece in TASK.views(w).items()}


def joined(parameters: dict[str, Tensor]) -> Tensor:
    return torch.cat([parameters[name].reshape(-1) for name in TASK.views(W0)])


def moved(
    parameters: dict[str, Tensor], loss: Callable[[dict[str, Tensor]], Tensor], names: list[str], lr: float = LR
) -> dict[str, Tensor]:
    """Take one step of plain SGD on some parameters."""
    free = {name: parameters[name].detach().requires_grad_() for name in names}
    grads = torch.autograd.grad(loss({**parameters, **free}), list(free.values()))
    return {**parameters, **{name: parameters[name] - lr * g for name, g in zip(names, grads, strict=True)}}


def answers(parameters: dict[str, Tensor], x: Tensor) -> Tensor:
    return functional_call(model(), parameters, (x,))


def entropy(logits: Tensor, y: Tensor) -> Tensor:
    return nn.functional.cross_entropy(logits, y)


def batches(client: int, round: int, epochs: int, stream: str = "epochs") -> list[tuple[Tensor, Tensor]]:
    data = ClientData.of(FEDERATION, [client], round, batch=BATCH, large=16)
    return [(batch.x[0], batch.y[0]) for batch in data.train(epochs, stream)]


NAMES = list(TASK.views(W0))
WEIGHT, BIAS = NAMES[-2:]  # of the last layer
SHARE = FEDERATION.sizes.double() / FEDERATION.sizes.sum()


def rounds(turn: Callable[[int, int, Tensor, Tensor], tuple[Tensor, Tensor]], count: int = 3) -> tuple[Tensor, Tensor]:
    """Train full rounds: turn(client, round, received, own) -> (upload, own). Return the server's model and all own
    ones.
    """
    server, own = W0, W0.repeat(EVERYBODY, 1)
    for round in range(1, count + 1):
        made = [turn(i, round, server, own[i]) for i in range(EVERYBODY)]
        server = SHARE @ torch.stack([upload for upload, _ in made])
        own = torch.stack([kept for _, kept in made])
    return server, own
