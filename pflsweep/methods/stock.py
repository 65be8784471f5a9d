"""Stock verbs: what many methods do alike. A method names them (`send = stock.broadcast`).

Each is a verb of protocol.Method, so its first argument is the method. States named here serve many.
"""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pflsweep.methods.protocol import Empty, Given, Method, Setup, Turn, Vector
from pflsweep.methods.task import Batch, by_class, mean_over
from pflsweep.models.blocks import head_of
from pflsweep.ops import random
from pflsweep.ops.vmap import alone, chunk_of, only, per_client, tree_map
from pflsweep.util.errors import UserError


class Server(NamedTuple):
    w: Tensor  # [P] the global model


class Down(NamedTuple):
    w: Vector  # [C, P]


class Up(NamedTuple):
    w: Vector  # [C, P]


class Own(NamedTuple):
    w: Tensor  # [P] a client's own model


class OwnHead(NamedTuple):
    head: Tensor  # [H] a client's own head


class Work(NamedTuple):
    w: Tensor  # [C, P]
    opt: Tensor  # [C, P] or [C, 0]


# Server


def global_server(self: Method, w: Tensor, setup: Setup) -> Server:
    return Server(w)


def stateless_server(self: Method, w: Tensor, setup: Setup) -> Empty:
    return Empty()


def stateless_client(self: Method, w: Tensor, setup: Setup) -> Empty:
    return Empty()


def own_model(self: Method, w: Tensor, setup: Setup) -> Own:
    return Own(w)


def own_head(self: Method, w: Tensor, setup: Setup) -> OwnHead:
    return OwnHead(w[self.task.head])


def top_layers(self: Any) -> slice:
    """The slice of w with the top `layers` blocks. Raises UserError where the model has fewer."""
    if self.layers > len(self.task.blocks):
        raise UserError(
            f"algorithm.layers is {self.layers}, but the model has {len(self.task.blocks)} blocks: use at most as many."
        )
    return self.task.top(self.layers)


def last_bias(self: Any) -> slice:
    """Return the slice of w with the bias of the last layer, the end of w. Raises UserError where that has none."""
    if head_of(self.task.model).bias is None:
        raise UserError("The model's last layer has no bias, and this method makes it personal: use another model.")
    return slice(self.task.size - self.task.classes, self.task.size)


def drawn_linear(key: Tensor, inputs: int, outputs: int) -> Tensor:
    """A layer's weights [outputs, inputs] and biases as one vector, from nn.Linear's distribution, in float32."""
    return (2 * random.uniform(key, (outputs * inputs + outputs,)) - 1) / inputs**0.5


def to_all(w: Tensor, turn: Turn) -> Tensor:
    """The same [P] for every client of the turn: [C, P] without a copy. What ALA has mixed, [C, P], stays as it is."""
    return w if w.dim() == 2 else w.expand(len(turn.ids), *w.shape)


def broadcast(self: Method, server: Any, turn: Turn) -> Down:
    return Down(to_all(server.w, turn))


def send_nothing(self: Method, server: Any, turn: Turn) -> Empty:
    return Empty()


def average(self: Method, server: Server, up: Up, turn: Turn) -> Server:
    """McMahan et al. 2017, Algorithm 1: w = sum_k (n_k / n) w_k."""
    return server._replace(w=turn.share @ up.w)


def keep_server(self: Method, server: Any, up: Any, turn: Turn) -> Any:
    return server


def shared_model(self: Method, server: Any) -> Tensor:
    return server.w


def no_global_model(self: Method, server: Any) -> None:
    return None


# Client


def start_from_down(self: Method, given: Given, data: Any) -> Work:
    return Work(given.down.w, self.opt.init(given.down.w))


def start_from_own(self: Method, given: Given, data: Any) -> Work:
    return Work(given.client.w, self.opt.init(given.client.w))


@per_client
def sgd_step(self: Method, given: Given, work: Any, batch: Batch) -> Any:
    """w <- w - lr grad f_B(w)"""
    w, opt = self.opt.descend(self.task, work.w, work.opt, batch, given.turn.lr)
    return work._replace(w=w, opt=opt)


def pulled(g: Tensor, strength: float | Tensor, w: Tensor, anchor: Tensor) -> Tensor:
    """g + strength (w - anchor), the gradient with that of strength / 2 |w - anchor|^2. Writes into g where it can."""
    if isinstance(strength, Tensor):  # each trial's own
        return g + strength * (w - anchor)
    return g.add_(w - anchor, alpha=strength) if strength else g


@per_client
def loss(self: Method, w: Tensor, batch: Batch) -> Tensor:
    """f_B(w), for data.mean."""
    return self.task.loss(w, batch)


@per_client
def class_features(self: Method, w: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
    """What the head sees, summed by class [K, D], and class counts [K], each per sample of the batch: for data.mean."""
    return by_class(self.task.below(w, batch, 1).x, batch, self.task.classes)


def class_means(sums: Tensor, share: Tensor) -> Tensor:
    """Means [..., K, D] of what `class_features` sums, the prototypes; 0 for a class without samples."""
    return sums / torch.where(share > 0, share, 1)[..., None]


def average_prototypes(old: Tensor, known: Tensor, new: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
    """Means [K, D] of clients' prototypes [C, K, D] by their counts [C, K]; a class that nobody has keeps its old one.

    Second, which classes are known now: [K].
    """
    n = counts.sum(0)
    mean = class_means(torch.einsum("ik,ikd->kd", counts.to(new.dtype), new), n)
    return torch.where(n[:, None] > 0, mean, old), known | (n > 0)


def apart_from(prototypes: Tensor, known: Tensor, z: Tensor, batch: Batch) -> Tensor:
    """Mean over a batch and D of the squared distance of features z [B, D] to their classes' known prototypes."""
    return mean_over((z - prototypes[batch.y]).square().mean(1) * known[batch.y], batch)


def run(step: Callable, given: Any, work: Any, batches: Iterable[Batch | tuple[Batch, ...]]) -> Any:
    """`step` over all batches. A client out of batches stands still while others of its chunk go on."""
    own = alone(step, given)
    if own is None:
        return _over(partial(step, given), work, batches)
    return chunk_of(_over(own, only(work), map(only, batches)))


def _over(step: Callable, work: Any, batches: Iterable[Batch | tuple[Batch, ...]]) -> Any:
    """work <- step(work, batch) over all batches, for a chunk or for one client."""
    for batch in batches:
        new = step(work, batch)
        live = (batch if isinstance(batch, Batch) else batch[0]).live  # a tuple's batches end together
        work = new if live is None else tree_map(_where(live), new, work)
    return work


def _where(live: Tensor) -> Callable:
    """live [C], or [] of one client"""
    return lambda new, old: torch.where(live.view(*live.shape, *[1] * (new.dim() - live.dim())), new, old)


def local_epochs(self: Any, given: Given, data: Any, work: Any) -> Any:
    """E epochs of mini-batches."""
    return run(self.step, given, work, data.train(self.epochs))


def upload(self: Method, given: Given, data: Any, work: Any) -> tuple[Up, Any]:
    """Send the trained model; the client's own state stays."""
    return Up(work.w), given.client


def upload_and_keep(self: Method, given: Given, data: Any, work: Work) -> tuple[Up, Own]:
    """Send the trained model, which is the client's own too."""
    return Up(work.w), Own(work.w)


def keep_own(self: Method, given: Given, data: Any, work: Any) -> tuple[Empty, Own]:
    """Send nothing; the trained model is the client's."""
    return Empty(), Own(work.w)


# Evaluation


def personal_is_global(self: Method, server: Any, client: Any, data: Any, turn: Turn) -> Tensor:
    return to_all(server.w, turn)


def personal_is_own_once_sampled(self: Method, server: Any, client: Any, data: Any, turn: Turn) -> Tensor:
    """The client's own model; before its first turn the newest global one."""
    return torch.where(turn.last[:, None] < 0, to_all(server.w, turn), client.w)


def personal_is_own(self: Method, server: Any, client: Any, data: Any, turn: Turn) -> Tensor:
    return client.w
