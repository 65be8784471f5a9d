"""FedCAC: a client's critical parameters are averaged only with clients to whom the same ones are critical."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pflsweep.methods import stock
from pflsweep.methods.protocol import Method, Setup, Turn, hyper


class Server(NamedTuple):
    w: Tensor  # [P] w_g, the mean of all uploads
    custom: Tensor  # [N, P] the mean over the clients that client i collaborates with
    critical: Tensor  # [N, P] M_i: which parameters are critical to client i; none before its first turn


@dataclass(frozen=True, kw_only=True)
class FedCAC(Method):
    """Wu, Liu, Niu, Zhu, Tang: Bold but Cautious: Unlocking the Potential of Personalized Federated Learning through
    Cautiously Aggressive Collaboration. ICCV 2023. https://arxiv.org/abs/2309.11103

    tau = 0 is FedAvg. The server knows what it sent, so it computes the masks itself: they are not sent, and a client
    downloads its merged model. Written from the authors' code (kxzxvbk/Fling); the paper's text was not at hand.
    What is decided here, or differs:
    - the critical parameters are the floor(tau n) most sensitive ones of each tensor, as in the code, with ties of the
      last one, and without parameters that did not move;
    - overlaps are compared within the cohort; absent clients keep masks and customized models (the code: all take
      part);
    - after `beta` rounds no client shares critical parameters, also where all overlaps are equal;
    - w_g is averaged with the run's weights, customized models by plain means.
    """

    paper = "Wu et al., ICCV 2023"
    rows_on_server = ("custom", "critical")
    unsampled_model = "the newest global model"
    cost = "the server keeps two vectors a client (2 N P), sorts each upload and makes M^2 P comparisons"
    dp_incompatible_reason = ""  # masks follow from what the server has anyway

    tau: float = hyper("share of the parameters of each tensor that are critical", low=0, high=1)
    beta: float = hyper("rounds after which no client shares critical parameters", low=0)

    init_client = stock.stateless_client
    start = stock.start_from_down
    step = stock.sgd_step
    fit = stock.local_epochs
    finish = stock.upload
    global_model = stock.shared_model

    def init(self, w: Tensor, setup: Setup) -> Server:
        critical = torch.zeros(setup.clients, len(w), dtype=torch.bool, device=w.device)
        return Server(w, w.repeat(setup.clients, 1), critical)

    def merged(self, server: Server, turn: Turn) -> Tensor:
        """Return w_i = M_i custom_i + (1 - M_i) w_g, [C, P]."""
        return torch.where(server.critical[turn.ids], server.custom[turn.ids], server.w)

    def send(self, server: Server, turn: Turn) -> stock.Down:
        return stock.Down(self.merged(server, turn))

    def aggregate(self, server: Server, up: stock.Up, turn: Turn) -> Server:
        sensitivity = ((up.w - self.merged(server, turn)) * up.w).abs()  # Omega = |Delta w|
        critical = torch.stack([self.most_sensitive(each) for each in sensitivity])
        partners = self.partners(overlaps(critical), turn.round).to(up.w.dtype)
        custom, masks = server.custom.clone(), server.critical.clone()
        custom[turn.ids] = partners @ up.w / partners.sum(1, keepdim=True)
        masks[turn.ids] = critical
        return Server(turn.share @ up.w, custom, masks)

    def most_sensitive(self, sensitivity: Tensor) -> Tensor:
        """Return M_i [P] bool from one client's sensitivity [P]: the share tau of largest values in each tensor."""
        found = []
        for part in self.task.views(sensitivity).values():
            count = int(self.tau * part.numel() + 1e-9)
            least = part.flatten().topk(count).values[-1] if count else part.new_tensor(torch.inf)
            found.append(((part >= least) & (part > 0)).flatten())
        return torch.cat(found)

    def partners(self, overlap: Tensor, round: int) -> Tensor:
        """Return C_i, the clients that client i collaborates with, as [M, M] bool, from the overlaps [M, M].

        These are the client itself and those whose overlap reaches O_avg + t / beta (O_max - O_avg).
        """
        alone = torch.eye(len(overlap), dtype=torch.bool, device=overlap.device)
        if len(overlap) == 1 or round > self.beta:
            return alone
        others = overlap[~alone]
        average, largest = others.mean(), others.max()
        # Written as a difference, so that in round beta rounding loses none with O_max
        return alone | (overlap - average >= round / self.beta * (largest - average))

    def personal(self, server: Server, client: Any, data: Any, turn: Turn) -> Tensor:
        return self.merged(server, turn)

    def show(self, server: Server) -> dict[str, Tensor]:
        return {"critical": server.critical.to(server.w.dtype).mean()}


def overlaps(critical: Tensor) -> Tensor:
    """Return O_ij = 1 - |M_i - M_j|_1 / (2 |M_i|_1) [M, M] of masks [M, P]; 0 if M_i is empty."""
    sizes = critical.sum(1).double()
    apart = torch.stack([(critical ^ each).sum(1) for each in critical])
    return torch.where(sizes[:, None] > 0, 1 - apart / (2 * sizes[:, None].clamp(min=1)), 0)
