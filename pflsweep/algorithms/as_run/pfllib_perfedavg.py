"""Per-FedAvg as FedALA's authors run it: two passes a round, and two steps on test batches before evaluation."""

from dataclasses import dataclass
from itertools import islice
from typing import Any

from torch import Tensor

from pflsweep.methods import stock
from pflsweep.methods.protocol import Given, Method, Turn, hyper
from pflsweep.methods.task import Batch
from pflsweep.ops.vmap import per_client


@dataclass(frozen=True, kw_only=True)
class PfllibPerFedAvg(Method):
    """Per-FedAvg (Fallah et al., NeurIPS 2020), first order, in PFLlib 43c5744, the library of FedALA's authors.

    Where it differs from the paper:
    - the inner and the outer rate are the same, the run's learning rate;
    - the server calls a client's training twice a round, so that it makes 2 E passes;
    - before evaluation a client takes two SGD steps from the global model on two batches of its *test* rows, which are
      among those that it is evaluated on; the second one may be partial. Later versions of the library use training
      rows, as this one does for AG News, whose split its loader ignores (`adapt_on`). A client with a single batch
      takes one step (the code ends in an error).
    """

    paper = "Fallah et al., NeurIPS 2020, as FedALA's authors run it"
    version = 2
    supports_ala = True
    unsampled_model = "the global model after two steps on its test data, as every client"
    reads_test_rows = "two gradient steps before each evaluation"
    cost = "twice the epochs, of half as many steps of two gradients each; each evaluation takes two gradient steps"
    dp_incompatible_reason = "its steps nest two gradients, whose noise would not add up as DP-SGD's does"

    adapt_on: str = hyper("rows of the two steps before an evaluation", choices=("test", "train"), neutral="test")

    init = stock.global_server
    init_client = stock.stateless_client
    send = stock.broadcast
    start = stock.start_from_down
    finish = stock.upload
    aggregate = stock.average
    global_model = stock.shared_model
    relative_gradients = classmethod(stock.two_gradients)

    def fit(self, given: Given, data: Any, work: stock.Work) -> stock.Work:
        return stock.run(self.step, given, work, data.batches(2, 2 * self.epochs))

    @per_client
    def step(self, given: Given, work: stock.Work, batches: tuple[Batch, ...]) -> stock.Work:
        """w <- w - beta grad f(w - beta grad f(w; D); D')."""
        lr, w = given.turn.lr, work.w
        g = self.task.grad(w - lr * self.task.grad(w, batches[0]), batches[1])
        return stock.Work(*self.opt.update(w, work.opt, g, lr))

    def personal(self, server: stock.Server, client: Any, data: Any, turn: Turn) -> Tensor:
        rows = data.test() if self.adapt_on == "test" else data
        batches = islice(rows.rating("adapt", dropout=True), 2)
        return stock.run(self.adapt, turn, stock.to_all(server.w, turn).clone(), batches)

    @per_client
    def adapt(self, turn: Turn, w: Tensor, batch: Batch) -> Tensor:
        return w - turn.lr * self.task.grad(w, batch)
