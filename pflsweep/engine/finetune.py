"""Fine-tuning for new clients: clients that took part in no round fine-tune the global model.

J. Luo, M. Mendieta, C. Chen and S. Wu, "PGFed: Personalize Each Client's Global Objective for Federated Learning",
ICCV 2023, https://arxiv.org/abs/2212.01448, section 5.4.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from pflsweep.data.batching import DEFAULT, Batching
from pflsweep.data.federation import Federation
from pflsweep.data.loader import ClientData
from pflsweep.engine.evaluate import OWN, Scores, score, targets
from pflsweep.methods.optimizer import Sgd
from pflsweep.methods.task import Task
from pflsweep.ops.vmap import squeeze_client


def fine_tune(
    task: Task, new: Federation, w: Tensor, opt: Sgd, *, epochs: int, batch: int, large: int, lr: float,
    batching: Batching = DEFAULT,
) -> Iterator[Scores]:  # fmt: skip
    """Yield the scores on the new clients' test rows of the model w [P], before and after each epoch.

    Each client trains a copy of w on its own training rows. batch, large: batch sizes in training and in evaluation.
    batching: how its rows are cut into batches.
    """
    w = w.to(new.device, new.dtype)
    models = [w.clone() for _ in range(new.clients)]
    states = [torch.zeros_like(w) if opt.momentum else w.new_zeros(0) for _ in models]
    own = targets(new, "test", OWN)
    yield score(task, task.logits, enumerate(models), new, own, large)["own"]
    for epoch in range(epochs):
        for i, model in enumerate(models):
            data = ClientData.of(new, [i], epoch, batch=batch, large=large, purpose="newcomers", batching=batching)
            for step in data.train(1):
                opt.update(model, states[i], task.grad(model, squeeze_client(step)), lr)  # in place
        yield score(task, task.logits, enumerate(models), new, own, large)["own"]
