"""kNN-Per: FedAvg's model, interpolated with the labels of a client's own samples whose features are nearest."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from pflsweep.methods import stock
from pflsweep.methods.protocol import Empty, Method, Setup, Turn, hyper
from pflsweep.methods.task import Batch, mean_over
from pflsweep.ops.vmap import per_client

WEIGHTS = 10  # a client's lambda is one of 0, 1/10, ..., 1


class Server(NamedTuple):
    w: Tensor  # [P] the global model
    largest: int  # training samples of the largest client


class Memory(NamedTuple):
    """The parts of a personal model [Q]. Its datastore has room for the largest client's samples."""

    w: Tensor  # [..., P] h_S
    weight: Tensor  # [...] lambda_m
    keys: Tensor  # [..., n, D] features phi(x) of the client's samples
    labels: Tensor  # [..., n] their classes; -1: no sample


@dataclass(frozen=True, kw_only=True)
class KnnPer(Method):
    """Marfoq, Neglia, Vidal, Kameni: Personalized Federated Learning through Local Memorization. ICML 2022.
    https://arxiv.org/abs/2111.09360 (Algorithm 1)

    Training is FedAvg. All else happens at a client's evaluation with the newest global model, and is not kept.
    weight = 0 is the global model. Where we or the authors' code differ:
    - the distance is Euclidean, as in the paper (code: its square over D);
    - weight = null lets each client choose its lambda_m by accuracy on a share `validation` of its training data, which
      is then neither trained on nor stored (the code reports all weights on the test data); of equally good weights it
      takes the smallest;
    - features are those that the head sees, without dropout and augmentation; with batch norm, those of the datastore
      use statistics of large batches.
    """

    paper = "Marfoq et al., ICML 2022"
    unsampled_model = "the newest global model with its own datastore, as every client"
    cost = "nothing in training; an evaluation of a client builds its datastore (n D) and searches it for each sample"
    dp_incompatible_reason = ""  # the datastore never leaves its client

    k: int = hyper("nearest samples that are used", low=1)
    weight: float | None = hyper("lambda, weight of the neighbours; null: each client chooses its own", low=0, high=1)
    validation: float = hyper("share of the training data on which a client chooses its weight", above=0, below=1)

    init_client = stock.stateless_client
    send = stock.broadcast
    start = stock.start_from_down
    step = stock.sgd_step
    finish = stock.upload
    aggregate = stock.average
    global_model = stock.shared_model

    def init(self, w: Tensor, setup: Setup) -> Server:
        return Server(w, int(setup.sizes.max()))

    def fit(self, given: Any, data: Any, work: Any) -> Any:
        return stock.run(self.step, given, work, self.remembered(data).train(self.epochs))

    def remembered(self, data: Any) -> Any:
        """Return the data that a client trains on and stores."""
        return data if self.weight is not None else data.holdout(self.validation)[0]

    def personal(self, server: Server, client: Empty, data: Any, turn: Turn) -> Tensor:
        w = stock.to_all(server.w, turn)
        stored = [self.stored(turn, w, batch) for batch in self.remembered(data).rows()]
        keys, labels = (torch.cat(parts, 1) for parts in zip(*stored, strict=True))
        # Padded rows may lie between samples. Move samples to the front, and keep as many as the largest client has
        order = (labels < 0).int().argsort(dim=1, stable=True)[:, : server.largest]
        keys, labels = keys.gather(1, order[..., None].expand(-1, -1, keys.shape[2])), labels.gather(1, order)
        room = server.largest - labels.shape[1]
        keys = F.pad(keys, (0, 0, 0, room))
        labels = F.pad(labels, (0, room), value=-1)
        weight = w.new_full((len(w), 1), 0.0 if self.weight is None else self.weight)
        model = torch.cat([w, weight, keys.flatten(1), labels], 1)
        if self.weight is None:
            right = data.holdout(self.validation)[1].mean(self.right, model)
            model[:, self.task.size] = right.argmax(1).to(w.dtype) / WEIGHTS
        return model

    @per_client
    def stored(self, turn: Turn, w: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the pairs (phi(x), y) of a batch: [B, D] and [B], 0 and -1 for padding."""
        z, y = self.task.batch_features(w, batch), batch.y.to(w.dtype)
        if batch.mask is None:
            return z, y
        return torch.where(batch.mask[:, None], z, 0), torch.where(batch.mask, y, -1)

    @per_client
    def right(self, model: Tensor, batch: Batch) -> Tensor:
        """Return the accuracy of a personal model on a batch with each weight, [WEIGHTS + 1]."""
        memory = self.memory(model)
        z = self.task.batch_features(memory.w, batch)
        weights = torch.arange(WEIGHTS + 1, dtype=z.dtype, device=z.device) / WEIGHTS
        p = torch.stack([self.interpolated(memory._replace(weight=one), z) for one in weights.unbind()], 1)
        return mean_over((p.argmax(2) == batch.y[:, None]).to(z.dtype), batch)

    def memory(self, model: Tensor) -> Memory:
        """Return the parts of one personal model [Q]."""
        width = self.task.width
        n = (len(model) - self.task.size - 1) // (width + 1)
        w, weight, keys, labels = model.split([self.task.size, 1, n * width, n])
        return Memory(w, weight.squeeze(0), keys.view(n, width), labels)

    def interpolated(self, memory: Memory, z: Tensor) -> Tensor:
        """Return probabilities [B, K] of features [B, D]: lambda_m h_m^(k)(x) + (1 - lambda_m) h_S(x) (eq. 7).

        [h_m^(k)(x)]_c ~ sum over the k nearest (x', y') with y' = c of e^{-d(phi(x), phi(x'))} (eq. 6).
        """
        # Not by a matrix product, by whose rounding a sample would have a distance from itself
        apart = torch.cdist(z, memory.keys, compute_mode="donot_use_mm_for_euclid_dist")
        near = apart.masked_fill(memory.labels < 0, torch.inf)  # [B, n]
        distance, index = near.topk(min(self.k, near.shape[1]), largest=False)
        # Empty places of the datastore have no weight, so any label will do
        labels = memory.labels[index].clamp(min=0).long()
        # Not by scatter_add, whose sums on a GPU depend on the order in which its threads arrive
        votes = ((-distance).softmax(1)[..., None] * F.one_hot(labels, self.task.classes)).sum(1)
        common = self.task.classify(memory.w[self.task.head], z).softmax(1)
        return memory.weight * votes + (1 - memory.weight) * common

    def logits(self, w: Tensor, x: Tensor) -> Tensor:
        """Return the logarithms of a personal model's probabilities."""
        memory = self.memory(w)
        p = self.interpolated(memory, self.task.features(memory.w, x))
        return p.clamp(min=torch.finfo(p.dtype).tiny).log()
