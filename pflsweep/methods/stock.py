"""Stock verbs, states and messages, shared by many methods. A method takes a verb by name (`send = stock.broadcast`).

Each verb is one of protocol.Method, so its first argument is the method.
"""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pflsweep.methods.batches import Batches, stretches
from pflsweep.methods.protocol import Empty, Given, Method, Setup, Turn, Vector
from pflsweep.methods.task import Batch, Task, by_class, mean_over
from pflsweep.models.blocks import head_of
from pflsweep.ops import random
from pflsweep.ops.graph import Repeated, recorders
from pflsweep.ops.vmap import (
    leaves,
    own_copy,
    per_client,
    select,
    squeeze_client,
    step_of_single_client,
    step_of_subset,
    tree_map,
    unsqueeze_client,
)
from pflsweep.util.errors import UserError

# Costs of going on without the clients that have ended, in steps of one client: the state of the others is copied, and
# a GPU records a step of fewer clients anew, which took 20 ms for 6 clients and 40 ms for 20
COPY, RECORD = 10, 300


def two_gradients(cls: type[Method], epochs: int, **values: Any) -> float:
    """Return the passes of a method that takes two gradients of each batch, or passes over the data twice."""
    return 2


def gradients_with_head(cls: type[Method], epochs: int, **values: Any) -> float:
    """Return the passes of a method whose head, or its bias, trains alone for `head_epochs` before all else.

    A head's gradient is little more than a forward pass, which is a third of a gradient.
    """
    return 1 + float(values["head_epochs"]) / (3 * epochs)


def teacher_logits(task: Task, teacher: Tensor, batch: Batch) -> Tensor:
    """Return the logits [B, K] of a model [P] that teaches another one on a batch: without dropout."""
    return task.classify(teacher[task.head], task.batch_features(teacher, batch))


class Server(NamedTuple):
    """The state of a server that keeps a global model."""

    w: Tensor  # [P] the global model


class Down(NamedTuple):
    """The message to the clients: a model for each."""

    w: Vector  # [C, P]


class Up(NamedTuple):
    """The message to the server: each client's model."""

    w: Vector  # [C, P]


class Own(NamedTuple):
    """The state of a client that keeps a model of its own."""

    w: Tensor  # [P]


class OwnHead(NamedTuple):
    """The state of a client that keeps a head of its own."""

    head: Tensor  # [H]


class Work(NamedTuple):
    """The training state of a turn: each client's model and its optimiser's state."""

    w: Tensor  # [C, P]
    opt: Tensor  # [C, P] or [C, 0]


# Server


def global_server(self: Method, w: Tensor, setup: Setup) -> Server:
    """Return the server's first state: the initial model w [P]."""
    return Server(w)


def stateless_server(self: Method, w: Tensor, setup: Setup) -> Empty:
    """Return a server state with nothing in it."""
    return Empty()


def stateless_client(self: Method, w: Tensor, setup: Setup) -> Empty:
    """Return a client state with nothing in it."""
    return Empty()


def own_model(self: Method, w: Tensor, setup: Setup) -> Own:
    """Return a client's first state: the initial model w [P] as its own."""
    return Own(w)


def own_head(self: Method, w: Tensor, setup: Setup) -> OwnHead:
    """Return a client's first state: the initial model's head [H] as its own."""
    return OwnHead(w[self.task.head])


def top_layers(self: Any) -> slice:
    """Return the slice of w with the top `layers` blocks. Raises UserError if the model has fewer."""
    if self.layers > len(self.task.blocks):
        raise UserError(
            f"algorithm.layers is {self.layers}, but the model has {len(self.task.blocks)} blocks: use at most as many."
        )
    return self.task.top(self.layers)


def last_bias(self: Any) -> slice:
    """Return the slice at the end of w with the last layer's bias. Raises UserError if the layer has none."""
    if head_of(self.task.model).bias is None:
        raise UserError("The model's last layer has no bias, and this method makes it personal: use another model.")
    return slice(self.task.size - self.task.classes, self.task.size)


def drawn_linear(key: Tensor, inputs: int, outputs: int) -> Tensor:
    """Draw a linear layer from nn.Linear's distribution, as one float32 vector.

    The vector has the weights [outputs, inputs], flattened, and then the biases [outputs].
    """
    u = random.uniform(key, (outputs * inputs + outputs,))
    # A GPU would multiply by the reciprocal of a plain number, which rounds differently
    return (2 * u - 1) / u.new_full((), inputs**0.5)


def to_all(w: Tensor, turn: Turn) -> Tensor:
    """Return models for every client of the turn: [C, P].

    w: the shared model [P], or models [C, P] that differ already, such as ALA's mixes, which are returned as they are.
    For other shared parts use `for_each`.
    """
    return w if w.dim() == 2 else for_each(w, turn)


def for_each(part: Tensor, turn: Turn) -> Tensor:
    """Return a part that all clients share, of any shape [...], for each of them: [C, ...] without a copy."""
    return part.expand(len(turn.ids), *part.shape)


def broadcast(self: Method, server: Any, turn: Turn) -> Down:
    """Send the same model to every client."""
    return Down(to_all(server.w, turn))


def send_nothing(self: Method, server: Any, turn: Turn) -> Empty:
    """Send nothing to the clients."""
    return Empty()


def average(self: Method, server: Server, up: Up, turn: Turn) -> Server:
    """Average the clients' models: w = sum_k (n_k / n) w_k (McMahan et al. 2017, Algorithm 1)."""
    return server._replace(w=turn.share @ up.w)


def keep_server(self: Method, server: Any, up: Any, turn: Turn) -> Any:
    """Return the server's state unchanged: nothing is aggregated."""
    return server


def shared_model(self: Method, server: Any) -> Tensor:
    """Return the server's model [P] as the global model."""
    return server.w


def no_global_model(self: Method, server: Any) -> None:
    """Return None: the method has no global model."""
    return None  # noqa: RET501 (None is the answer)


# Client


def start_from_down(self: Method, given: Given, data: Any) -> Work:
    """Start training from the received models [C, P]."""
    return Work(given.down.w, self.opt.init(given.down.w))


def start_from_own(self: Method, given: Given, data: Any) -> Work:
    """Start training from the clients' own models [C, P]."""
    return Work(given.client.w, self.opt.init(given.client.w))


@per_client
def sgd_step(self: Method, given: Given, work: Any, batch: Batch) -> Any:
    """Take one SGD step: w <- w - lr grad f_B(w)."""
    w, opt = self.opt.descend(self.task, work.w, work.opt, batch, given.turn.lr)
    return work._replace(w=w, opt=opt)


def proximal_gradient(g: Tensor, strength: float | Tensor, w: Tensor, anchor: Tensor) -> Tensor:
    """Return g + strength (w - anchor): the gradient with the term strength / 2 |w - anchor|^2 in the objective.

    Writes into g unless strength is a tensor.
    """
    # In stacked trials the strength is a tensor, since each trial may have another.
    if isinstance(strength, Tensor):
        return g + strength * (w - anchor)
    return g.add_(w - anchor, alpha=strength) if strength else g


@per_client
def loss(self: Method, w: Tensor, batch: Batch) -> Tensor:
    """Return the batch's mean loss f_B(w), a scalar. For data.mean."""
    return self.task.loss(w, batch)


@per_client
def class_features(self: Method, w: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
    """Return the head's inputs summed by class [K, D] and the class counts [K], both divided by the batch's samples.

    For data.mean.
    """
    return by_class(self.task.batch_features(w, batch), batch, self.task.classes)


def class_means(sums: Tensor, share: Tensor) -> Tensor:
    """Return the prototypes [..., K, D]: the means of what `class_features` sums; 0 for a class without samples.

    sums [..., K, D] and share [..., K]: what `class_features` returns.
    """
    return sums / torch.where(share > 0, share, 1)[..., None]


def average_prototypes(old: Tensor, known: Tensor, new: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
    """Return the clients' prototypes averaged by their class counts [K, D], and which classes are known now [K].

    old [K, D]: kept for a class of which no client has samples. known [K]: the classes known before. new [C, K, D]: the
    clients' prototypes. counts [C, K]: their samples.
    """
    n = counts.sum(0)
    mean = class_means(torch.einsum("ik,ikd->kd", counts.to(new.dtype), new), n)
    return torch.where(n[:, None] > 0, mean, old), known | (n > 0)


def prototype_distance(prototypes: Tensor, known: Tensor, z: Tensor, batch: Batch) -> Tensor:
    """Return the mean over a batch and over D of the squared distance of features z [B, D] to their class prototypes.

    prototypes [K, D]. known [K]: a sample of a class that is not known counts as 0.
    """
    return mean_over((z - prototypes[batch.y]).square().mean(1) * known[batch.y], batch)


def run(step: Callable, given: Any, work: Any, batches: Iterable[Batch | tuple[Batch, ...]]) -> Any:
    """Return the work after `step` over all batches. A client out of batches keeps its work while others go on."""
    if not isinstance(batches, Batches) or not hasattr(step, "of_one"):
        return _together(step, given, work, batches)
    device = leaves(work)[0].device
    for at, start, stop in stretches(batches.lengths, RECORD if device.type in recorders else COPY):
        part = batches.part(at, start, stop)
        if len(at) == len(batches.lengths):
            work = _together(step, given, work, part)
            continue
        where = torch.tensor(at, device=device)
        # A step may write into the work
        some = _together(step_of_subset(step, where), select(given, where), own_copy(select(work, where)), part)
        work = tree_map(lambda all, new, where=where: all.index_copy(0, where, new), work, some)
    return work


def _together(step: Callable, given: Any, work: Any, batches: Iterable[Batch | tuple[Batch, ...]]) -> Any:
    """Return the work after `step` over all batches, of clients that train together to the end."""
    one = step_of_single_client(step, given)
    if one is None:
        return _over(partial(step, given), work, batches)
    return unsqueeze_client(_over(one, squeeze_client(work), map(squeeze_client, batches)))


def _over(step: Callable, work: Any, batches: Iterable[Batch | tuple[Batch, ...]]) -> Any:
    """Return the work after work <- step(work, batch) over all batches, for a chunk or for one client."""

    def advanced(work: Any, batch: Any) -> Any:
        # The batches of a tuple belong to the same clients, so that one says for all of them who has a batch.
        live = (batch if isinstance(batch, Batch) else batch[0]).live
        # The step of one client writes into the old work. So where `live` may refuse that step, the old work is copied
        # first: in an empty Poisson batch, for the last client of a chunk, or where a method sets `live`.
        old = tree_map(torch.clone, work) if live is not None and live.numel() == 1 else work
        new = step(work, batch)
        return new if live is None else tree_map(_where(live), new, old)

    repeated = Repeated(advanced, leaves(work)[0].device)
    for batch in batches:
        work = repeated(work, batch)
    return work


def _where(live: Tensor) -> Callable:
    """Return the function (new, old) -> new where `live` ([C], or [] for one client) is true, else old."""
    return lambda new, old: torch.where(live.view((*live.shape, *[1] * (new.dim() - live.dim()))), new, old)


def local_epochs(self: Any, given: Given, data: Any, work: Any) -> Any:
    """Train for E epochs of mini-batches."""
    return run(self.step, given, work, data.train(self.epochs))


def upload(self: Method, given: Given, data: Any, work: Any) -> tuple[Up, Any]:
    """Send the trained model. The client's state does not change."""
    return Up(work.w), given.client


def upload_and_keep(self: Method, given: Given, data: Any, work: Work) -> tuple[Up, Own]:
    """Send the trained model and keep it as the client's own model."""
    return Up(work.w), Own(work.w)


def keep_own(self: Method, given: Given, data: Any, work: Any) -> tuple[Empty, Own]:
    """Send nothing, and keep the trained model as the client's own model."""
    return Empty(), Own(work.w)


# Evaluation


def personal_is_global(self: Method, server: Any, client: Any, data: Any, turn: Turn) -> Tensor:
    """Return [C, P]: the global model for every client."""
    return to_all(server.w, turn)


def personal_is_own_once_sampled(self: Method, server: Any, client: Any, data: Any, turn: Turn) -> Tensor:
    """Return [C, P]: each client's own model, or before its first turn the newest global model."""
    return torch.where(turn.last[:, None] < 0, to_all(server.w, turn), client.w)


def personal_is_own(self: Method, server: Any, client: Any, data: Any, turn: Turn) -> Tensor:
    """Return [C, P]: each client's own model."""
    return client.w
