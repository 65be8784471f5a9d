"""Study: personalise the global model by a few gradient steps, with an explicit and with an implicit objective.

J. Luo, M. Mendieta, C. Chen and S. Wu, "PGFed: Personalize Each Client's Global Objective for Federated Learning",
ICCV 2023, https://arxiv.org/abs/2212.01448, figure 2 and section 3.2.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from pflsweep.data.loader import ClientData
from pflsweep.engine.evaluate import OWN, Targets, score, targets
from pflsweep.engine.simulation import Simulation
from pflsweep.methods import stock
from pflsweep.methods.protocol import hyper
from pflsweep.methods.task import Batch
from pflsweep.ops import random
from pflsweep.ops.vmap import squeeze_client
from pflsweep.studies.study import Study
from pflsweep.util.errors import UserError

Row = tuple[int, str, int, float, float, float]
NO_MODEL = "study=personal_steps starts from the global model, and this method has none."


@dataclass(kw_only=True, eq=False)
class PersonalSteps(Study):
    """Scores of personalised models after each of S gradient steps from the last round's global model.

    Every client i takes the steps twice: with the implicit objective, its own risk f_i, and with the explicit one of
    Eq. 4, F_i = f_i + mu / (N - 1) sum_{j != i} f_j.

    The paper states S. It leaves open, and here is chosen: gradient steps are plain, without momentum; mu; the learning
    rate; f_i of a step is the risk of a batch, the same for both objectives. The f_j are the risks of `others` rows of
    each client j, drawn with replacement for each step, the same for all i: the exact mean would cost N^2 passes over
    the data.

    Columns of the table: client, objective, step (0 to S), and n, correct and loss on the client's test rows.
    """

    steps: int = hyper("S: gradient steps of each client", low=1)
    mu: float = hyper("weight of the others' mean risk in the explicit objective", low=0)
    lr: float = hyper("learning rate of the steps", above=0)
    batch: int = hyper("own rows in a step", low=1)
    others: int = hyper("rows of each other client in a step", low=1)

    def check(self, simulation: Simulation) -> None:
        # Asked of the class: FedFomo's global model exists only after the first upload.
        if getattr(type(self.method), "global_model", None) is stock.no_global_model:
            raise UserError(NO_MODEL)
        if simulation.verbs.malicious is not None:
            raise UserError(
                "study=personal_steps takes the risks of all clients as honest, and an attack makes some malicious: "
                "leave out study= or attack=."
            )
        if simulation.federation.clients < 2:
            raise UserError(
                "study=personal_steps needs two clients that train, and here is one (partition.clients, data.new)."
            )

    def table(self, simulation: Simulation) -> pd.DataFrame:
        if simulation.global_model() is None:
            raise UserError(NO_MODEL)
        found = targets(simulation.federation, "test", OWN)
        pool = [self._drawn(simulation, step) for step in range(self.steps)]
        costs = [1.0] * simulation.federation.clients
        parts = dict(simulation.workers.map("steps", costs, lambda i: list(self._rows(simulation, i, pool, found))))
        rows = [row for client in sorted(parts) for row in parts[client]]
        return pd.DataFrame(rows, columns=["client", "objective", "step", "n", "correct", "loss"])

    def _rows(self, simulation: Simulation, client: int, pool: list[Tensor], found: Targets) -> Iterator[Row]:
        """Yield one client's rows of the table. pool: what `_models` takes."""
        task, federation, large = simulation.task, simulation.federation, simulation.schedule.eval_batch
        for objective in ("explicit", "implicit"):
            for step, w in enumerate(self._models(simulation, client, pool if objective == "explicit" else None)):
                seen = score(task, task.logits, [(client, w)], federation, found, large)
                n, correct, loss, _ = (float(column[client]) for column in seen["own"])
                yield client, objective, step, n, correct, loss

    def _models(self, simulation: Simulation, client: int, pool: list[Tensor] | None) -> Iterator[Tensor]:
        """Yield the client's model [P]: the global one, and that after each step.

        pool: for each step the drawn rows of all clients [N, others]; None: the implicit objective.
        """
        task, federation, w = simulation.task, simulation.federation, simulation.global_model()
        assert w is not None
        yield w
        large = simulation.schedule.eval_batch
        data = ClientData.of(federation, [client], simulation.round, batch=self.batch, large=large, purpose="study")
        for step, batch in enumerate(islice(data.train(self.steps), self.steps)):
            g = task.grad(w, squeeze_client(batch))
            if pool is not None:
                rows = torch.cat([pool[step][:client], pool[step][client + 1 :]]).flatten()
                x, y = federation.gather(rows.to(federation.device))
                # Each client has as many rows in this batch, so that its mean loss is the mean of f_j over j.
                g = g + self.mu * task.grad(w, Batch(x, y, None, None, None))
            w = w - self.lr * g
            yield w

    def _drawn(self, simulation: Simulation, step: int) -> Tensor:
        """Draw training rows of each client for a step: [N, others]."""
        federation = simulation.federation
        drawn = [
            random.generator(federation.seed, "study/others", step, int(key)).choice(rows, self.others)
            for key, rows in zip(federation.stable_ids, federation.rows["train"], strict=True)
        ]
        return torch.from_numpy(np.stack(drawn))
