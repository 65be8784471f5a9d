"""MOCHA in the form that FedFomo compares with: clients train their own models, which a matrix Omega relates."""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pflsweep.methods import stock
from pflsweep.methods.protocol import Given, Method, Scalars, Setup, Turn, Vector, hyper
from pflsweep.methods.task import Batch
from pflsweep.ops.vmap import per_client

ROWS = 4000  # public code sums the trace over blocks of this many rows of W, without a last incomplete block


class Server(NamedTuple):
    columns: Tensor  # [N, d] the regularised part of each client's latest model: W, transposed


class Down(NamedTuple):
    others: Vector  # [C, d] sum_{k != i} Omega_ik w_k, the other columns' part
    self_weight: Scalars  # [C] Omega_ii


class Up(NamedTuple):
    column: Vector  # [C, d]


@dataclass(frozen=True, kw_only=True)
class Mocha(Method):
    """Smith, Chiang, Sanjabi, Talwalkar: Federated Multi-Task Learning. NIPS 2017. https://arxiv.org/abs/1705.10467
    In the form that FedFomo (Zhang et al., ICLR 2021) compares with: mini-batch SGD on neural networks.

    Client i minimises f_i + reg 10^-f (|W|_F^2 + tr(W Omega W^T)), f = floor(log10 d) + 2, over its own column of W
    [d, N]; the other columns stay constant in a turn. Omega is fixed. Where the forms differ:
    - omega = "paper": the matrix (I - 11^T / N)^2 = I - 11^T / N, so that the trace is sum_k |w_k - mean w|^2;
    - omega = "code": the code that FedFomo used (LG-FedAvg's) has a matrix of ones in place of I and squares each
      entry, which pulls the sum of all columns to 0; it leaves out the last d mod 4000 rows of the trace;
    - W has the regularised layers alone, in that code the last ones; the others are trained locally;
    - W has a column for every client: its latest model, or the initial one where it was never sampled (that code at
      partial participation: those of the first clients in the list, whichever are sampled);
    - reg is ours; reg = 0 is Local. The other columns enter the gradient as one sum, so only that is sent.
    """

    paper = "Smith et al., NIPS 2017, as compared with by Zhang et al., ICLR 2021"
    unsampled_model = "the common initial model"
    cost = "a step reads the regulariser's part of the gradient once more (d <= P); the server keeps N d numbers"
    dp_incompatible_reason = ""

    reg: float = hyper("factor of the regulariser, in addition to 10^-f", low=0)
    omega: str = hyper(
        "how clients are related: by the centring matrix, or as in public code", choices=("paper", "code")
    )
    layers: int | None = hyper("top blocks that are regularised and sent; null: all", low=1)

    init_client = stock.own_model
    start = stock.start_from_own
    fit = stock.local_epochs
    personal = stock.personal_is_own
    global_model = stock.no_global_model

    @property
    def part(self) -> slice:
        """Return the slice of the d regularised parameters."""
        return slice(0, self.task.size) if self.layers is None else stock.top_layers(self)

    def init(self, w: Tensor, setup: Setup) -> Server:
        return Server(w[self.part].repeat(setup.clients, 1))

    def relations(self, columns: Tensor) -> Tensor:
        """Return Omega [N, N]."""
        n = len(columns)
        if self.omega == "code":
            return columns.new_full((n, n), (1 - 1 / n) ** 2)
        return torch.eye(n, dtype=columns.dtype, device=columns.device) - 1 / n

    def send(self, server: Server, turn: Turn) -> Down:
        omega = self.relations(server.columns)
        return Down((omega - omega.diag().diag())[turn.ids] @ server.columns, omega.diag()[turn.ids])

    @per_client
    def step(self, given: Given, work: stock.Work, batch: Batch) -> stock.Work:
        column, down = work.w[self.part], given.down
        d = len(column)
        related = down.self_weight * column + down.others  # column i of W Omega
        if self.omega == "code":
            related = torch.cat([related[: d - d % ROWS], torch.zeros_like(column[d - d % ROWS :])])
        scale = self.reg * 10.0 ** -(math.floor(math.log10(d)) + 2)
        g = self.task.grad(work.w, batch)
        g[self.part].add_(2 * scale * (column + related))
        return stock.Work(*self.opt.update(work.w, work.opt, g, given.turn.lr))

    def finish(self, given: Given, data: Any, work: stock.Work) -> tuple[Up, stock.Own]:
        return Up(work.w[:, self.part]), stock.Own(work.w)

    def aggregate(self, server: Server, up: Up, turn: Turn) -> Server:
        return Server(server.columns.index_copy(0, turn.ids, up.column))
