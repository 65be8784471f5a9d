"""FedPG and S-FedPG: a common descent direction, and personal steps that do not conflict with other clients' losses."""

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pflsweep.methods import stock
from pflsweep.methods.protocol import Empty, Given, Kept, Method, Scalars, Setup, Turn, Vector, hyper
from pflsweep.methods.qp import combined, gram, lengths, min_norm, nonnegative
from pflsweep.util.errors import UserError

ZERO = 1e-6  # length up to which a gradient counts as zero and is not a column
EQUAL = 1e-6  # |h| |L| below which all losses count as equal: in float32 they are, up to rounding
STILL = 1e-8  # |d| relative to the mean |g|, up to which the model counts as Pareto stationary
HELD = 1e-6  # |p_i| relative to |g_i|, below which the other clients leave client i no direction


class Server(NamedTuple):
    w: Tensor  # [P] omega, the global model
    grads: Tensor  # [N, P] each client's latest g_j
    last: Tensor  # [N] the round of that gradient; -1: none yet
    models: Tensor  # [N, P] each client's latest personal model


class Known(NamedTuple):
    w: Kept  # [C, P] omega^t, which the whole cohort has from the round before


class Up(NamedTuple):
    g: Vector  # [C, P] (omega^t - omega_i) / eta_t
    loss: Scalars  # [C] L_i(omega^t)


class TriedStep(NamedTuple):
    d: Vector  # [C, P] d-hat
    eta: Scalars  # [C]


class ShorterStep(NamedTuple):
    d: Kept  # [C, P] d-hat, as in the first trial
    eta: Scalars  # [C]


class Losses(NamedTuple):
    loss: Scalars  # [C] L_i(omega^t + eta d-hat)


class Personal(NamedTuple):
    """Message to a client, with which it makes its model from omega^{t+1}. It needs no answer."""

    rate: Scalars  # [C] r_i; [C, 0] for form = mix
    e: Vector  # [C, P] e_i; [C, 0] for form = rate
    eta: Scalars  # [C] the step found by the search; [C, 0] without a search


class Direction(NamedTuple):
    d: Tensor  # [P] d-hat
    length: float  # |d-hat|
    slope: Tensor  # [n] c_j . d-hat for each gradient
    sigma: float  # d-hat = sigma d


@dataclass(frozen=True, kw_only=True)
class FedPG(Method):
    """Preserving Global Performance in Personalized Federated Learning. Anonymous ICCV submission 6989 (FedPG). We have
    only the paper's supplement, whose equation numbers are cited. No link.

    With s and beta it is S-FedPG, whose server searches for its step length (Algorithm 1). FedPG with one client a
    round and no history (tau = 0) has FedAvg's global model. Reconstructed from the supplement, its tables, and the
    public code of the authors' platform, FedLF and FedMDFG:
    - absent clients (section 3.2.2): their latest gradients are columns too, for tau rounds. By default tau is, as in
      FedLF, (clients ever seen before) / (clients of the round), rounded down. FedLF's code leaves absent clients out
      until more clients were seen than a round has; here round 2 includes clients of round 1 that are absent. FedMDFG
      has tau = 1;
    - columns: `unify` scales all of them to the mean length of the round's gradients, as FedLF does; `code` scales only
      grad F and absent clients' gradients, as the platform does; `literal` scales none, as in eq. 3. Lemma 1 is about
      scaled columns;
    - the length of the step: reference = mean takes the length of the mean gradient, |d_r| (FedMDFG). One gradient
      times 100 (attack A2) makes that ten times as long, and training fails where Table 3 shows no harm. reference =
      median, the default, takes the length of the mean of the gradients' directions times their median length, which
      resists that attack;
    - personal models, form = rate: d_i = d-hat - r_i g_i, with g_i scaled to d-hat's length and r_i <= 1 as large as
      possible without conflict with another client (grad F is not a client and does not count). form = mix, the table's
      rows with gamma: d_i = d-hat + e_i, where e_i is as long as d-hat along (1 - gamma) p_i - gamma g_i, and p_i is
      -g_i projected such that no other client's loss rises. p_base = before leaves d-hat out. An absent client keeps
      its model.
    What we add to the paper:
    - g_i is the distance covered in E epochs over the learning rate, also with momentum and weight decay;
    - a client whose upload is not finite counts as absent, a gradient of zero is not a column, and without a common
      descent direction no model moves;
    - all losses are over all local data without dropout, and beta's test uses the gradients as they were sent;
    - where no step of the search lies between its bounds, the longest is tried.
    Traffic: omega^t and g_i, then the rate or e_i. omega^{t+1}, which a personal model is made from, is not counted
    when it is sent for evaluation, as for any method. The search sends d-hat to the clients, one more vector; where all
    clients took part in the round before, they know omega^t, and it is not sent again.
    """

    paper = "Anonymous, ICCV submission 6989"
    version = 2
    rows_on_server = ("models", "last")
    unsampled_model = "the global model"
    cost = (
        "a forward pass over the data for the loss, and one for each step tried (S-FedPG); the server keeps 2 P a "
        "client, reads all gradients of the round and its history, and solves small QPs (mix: one a client)"
    )
    dp_incompatible_reason = "it sends the loss of the received model, and of every step tried"
    reconstruction = "absent clients' part, the columns' scale, and how the direction and gamma make personal models"

    form: str = hyper("personal models: a rate of the own gradient, or gamma's mix", choices=("rate", "mix"))
    gamma: float | None = hyper("share of the own gradient in a personal direction (mix)", low=0, high=1)
    p_base: str = hyper("personal models start after the global step, or before it (mix)", choices=("after", "before"))
    col_scale: str = hyper("which columns are scaled to the mean length", choices=("unify", "code", "literal"))
    reference: str = hyper("d-hat's length: the mean gradient's, or by the median length", choices=("mean", "median"))
    tau: int | None = hyper("rounds for which absent clients' gradients count; null: as FedLF", low=0)
    s: int | None = hyper("the search spans eta 2^s and eta / (2^s sigma); null: no search", low=0)
    beta: float | None = hyper("share of the predicted descent that a step has to reach (Armijo)", low=0, below=1)

    init_client = stock.stateless_client
    start = stock.start_from_down
    step = stock.sgd_step
    fit = stock.local_epochs
    loss = stock.loss
    global_model = stock.shared_model

    def __post_init__(self) -> None:
        if (self.form == "mix") != (self.gamma is not None) or (self.form == "rate" and self.p_base != "after"):
            raise UserError(
                f"algorithm.form is {self.form}, algorithm.gamma {self.gamma} and algorithm.p_base {self.p_base}: "
                "gamma and p_base belong to form=mix. Use form=mix with gamma=0.3, or form=rate with gamma=null and "
                "p_base=after."
            )
        if (self.s is None) != (self.beta is None):
            raise UserError(
                f"algorithm.s is {self.s} and algorithm.beta {self.beta}: a line search needs both. Use s=1 with "
                "beta=0.0001 (algorithm=s_fedpg), or null for both."
            )

    def init(self, w: Tensor, setup: Setup) -> Server:
        rows = w.new_zeros(setup.clients, len(w))
        return Server(w, rows, torch.full((setup.clients,), -1, device=w.device), rows.clone())

    def send(self, server: Server, turn: Turn) -> stock.Down | Known:
        w = stock.to_all(server.w, turn)
        followed = self.s is not None and bool((server.last == turn.round - 1).all())
        return Known(w) if followed else stock.Down(w)

    def finish(self, given: Given, data: Any, work: stock.Work) -> tuple[Up, Any]:
        """Upload g_i (FedLF's Algorithm 1, line 4) and the loss at omega^t."""
        w = given.down.w
        return Up((w - work.w) / given.turn.lr, data.mean(self.loss, w)), given.client

    def aggregate(self, server: Server, up: Up, turn: Turn) -> Generator[Any, Any, Server]:
        present = up.g.isfinite().all(1) & up.loss.isfinite()
        if not present.any():
            return server
        g, loss, ids = up.g[present], up.loss[present].double(), turn.ids[present]
        m = len(g)
        rows = torch.cat([g, server.grads[self.history(server.last, ids, turn.round)]])
        inner = gram(rows)
        h = self.fairness(loss, inner)
        step, eta = self.direction(rows, inner, h, m), turn.round_lr
        if self.s is not None and step.length:
            before = server.last == turn.round - 1
            # Longer steps are tried only if S^{t-1} is within S^t
            longest = turn.round_lr * (2**self.s if before.sum() == before[ids].sum() else 1)
            eta = yield from self.search(step, longest, loss, h, turn, present)
        w = server.w + eta * step.d
        rate, e = self.personal_parts(rows, inner, step, m)
        found = loss.new_full((len(ids), 0 if self.s is None else 1), eta)
        yield Personal(*(spread(part.to(up.g.dtype), present) for part in (rate, e, found)))
        if self.form == "rate":
            # d_i = d-hat - r_i g_i, with g_i scaled to the length of d-hat
            e = -(rate * step.length / lengths(inner)[:m].clamp(min=ZERO))[:, None].to(g.dtype) * g
        models = (server.w if self.p_base == "before" else w) + eta * e
        return Server(
            w,
            server.grads.index_copy(0, ids, g),
            server.last.index_fill(0, ids, turn.round),
            server.models.index_copy(0, ids, models),
        )

    def history(self, last: Tensor, ids: Tensor, round: int) -> Tensor:
        """Return the ids [H] of absent clients whose latest gradient still counts."""
        tau = int((last >= 0).sum()) // len(ids) if self.tau is None else self.tau
        recent = (last >= 0) & (round - last <= tau)
        return recent.index_fill(0, ids, False).nonzero().flatten()

    def fairness(self, loss: Tensor, inner: Tensor) -> Tensor:
        """Return grad F = sum_i h_i g_i (below eq. 5) as weights of all gradients; zeros where it is not a column."""
        m, h = len(loss), slope_of_unfairness(loss)
        whole = torch.nn.functional.pad(h, (0, len(inner) - m))
        size = (whole @ inner @ whole).clamp(min=0).sqrt()
        zero = m == 1 or h.norm() * loss.norm() < EQUAL or size <= ZERO * h.norm() * lengths(inner)[:m].mean()
        return torch.zeros_like(whole) if zero else whole

    def direction(self, rows: Tensor, inner: Tensor, h: Tensor, m: int) -> Direction:
        """Return d-hat: the solution of eq. 3, scaled.

        rows [n, P]: gradients of m present clients, then of the history. inner: their inner products. h [n]: see
        `fairness`.
        """
        weight, mean_length = self.weights(inner, h, m)
        d = -combined(weight, rows)
        length = float(torch.linalg.vector_norm(d, dtype=torch.float64))
        if not length > STILL * mean_length:
            return Direction(torch.zeros_like(d), 0.0, torch.zeros_like(weight), 0.0)
        reference = self.reference_length(inner[:m, :m])
        sigma = reference / length
        return Direction(sigma * d, reference, -sigma * inner @ weight, sigma)

    def reference_length(self, inner: Tensor) -> float:
        """Return |d_r|, the length of the step, from the inner products of the round's gradients."""
        if self.reference == "mean":
            return float(inner.mean().clamp(min=0).sqrt())
        length = lengths(inner)
        live = length > ZERO
        inverse = torch.where(live, 1 / length.clamp(min=ZERO), 0)
        return float((inverse[:, None] * inner * inverse).mean().clamp(min=0).sqrt() * length[live].median())

    def weights(self, inner: Tensor, h: Tensor, m: int) -> tuple[Tensor, float]:
        """Solve eq. 3: return Q lambda as weights of the gradients [n], and the mean length of the round's gradients.

        Columns are the gradients and, as the last one, grad F. Columns that are zero get no weight.
        """
        columns = torch.cat([torch.eye(len(h), dtype=h.dtype, device=h.device), h[:, None]], 1)
        length = lengths(columns.T @ inner @ columns)
        live = length > ZERO
        live[-1] = h.any()
        if not live[:m].any():
            return torch.zeros_like(h), 0.0
        mean = length[:m][live[:m]].mean()
        scale = torch.where(live, mean / torch.where(live, length, 1), 0)
        if self.col_scale != "unify":
            scale[: m if self.col_scale == "code" else None] = 1
        columns = columns * scale
        return columns @ min_norm(columns.T @ inner @ columns, high=live.to(h.dtype)), float(mean)

    def search(
        self, step: Direction, longest: float, loss: Tensor, h: Tensor, turn: Turn, present: Tensor
    ) -> Generator[Any, Any, float]:
        """Find eta^t by Algorithm 1, by questions to the clients. longest: eta_ub there."""
        shortest = turn.lr / (2 ** (self.s or 0) * step.sigma)
        eta, tried = longest, list[tuple[float, float]]()
        while not tried or eta >= shortest:
            kind = ShorterStep if tried else TriedStep
            replies = yield kind(stock.to_all(step.d, turn), torch.full_like(turn.share, eta))
            new = replies.loss[present].double()
            if self.armijo(loss, new, (self.beta or 0.0) * eta * step.slope, h):
                return eta
            tried.append((eta, float(new.mean().nan_to_num(nan=torch.inf, posinf=torch.inf))))
            eta /= 2
        # Eq. 7; the longest steps were tried first
        lower = [eta for eta, mean in tried if mean < loss.mean()]
        return lower[0] if lower else min(reversed(tried), key=lambda pair: pair[1])[0]

    def armijo(self, old: Tensor, new: Tensor, wanted: Tensor, h: Tensor) -> bool:
        """Return whether a step passes the test of eq. 6.

        F is tested only where it is a column: where all losses are equal it is at its minimum, and no step could pass.
        old, new: losses [m]. wanted [n]: beta eta g_j . d-hat, for absent clients too.
        """
        better = bool((old >= new - wanted[: len(old)]).all())
        return better and (not h.any() or bool(unfairness(old) >= unfairness(new) - h @ wanted))

    def answer(self, given: Given, data: Any, question: Any) -> Losses | Empty:
        if isinstance(question, Personal):
            return Empty()
        return Losses(data.mean(self.loss, given.down.w + question.eta[:, None] * question.d))

    def personal_parts(self, rows: Tensor, inner: Tensor, step: Direction, m: int) -> tuple[Tensor, Tensor]:
        """Return the personal parts (r_i [m], nothing [m, 0]), or for form = mix (nothing [m, 0], e_i [m, P])."""
        nothing = rows.new_zeros(m, 0)
        if self.form == "rate":
            return self.rates(inner, step, m), nothing
        return nothing, self.mixed(rows, inner, step, m)

    def rates(self, inner: Tensor, step: Direction, m: int) -> Tensor:
        """Return r_i [m], the largest with c_j . (d-hat - r_i g_i) <= 0 for all j != i; g_i is as long as d-hat."""
        length = lengths(inner)
        live = length > ZERO
        along = inner[:, :m] * (step.length / length[:m].clamp(min=ZERO))  # c_j . g_i, which is positive for j = i
        bound = torch.where(live[:, None] & (along < 0), step.slope[:, None] / along, 1)  # at most 1
        return torch.where(live[:m], bound.amin(0).clamp(min=0), 0)

    def mixed(self, rows: Tensor, inner: Tensor, step: Direction, m: int) -> Tensor:
        """Return e_i [m, P], which is as long as d-hat, along (1 - gamma) p_i - gamma g_i."""
        live, gamma = lengths(inner) > ZERO, self.gamma or 0.0
        weight = inner.new_zeros(m, len(inner))
        for i in live[:m].nonzero().flatten().tolist():
            others = live.clone().index_fill(0, torch.tensor([i], device=live.device), False).nonzero().flatten()
            # p_i = -(g_i + sum_j nu_j c_j) is the nearest to -g_i with c_j . p_i <= 0
            nu = nonnegative(inner[others][:, others], inner[others, i])
            weight[i, others] = (1 - gamma) * nu
            weight[i, i] = 1
        left = torch.einsum("in,nk,ik->i", weight, inner, weight).clamp(min=0).sqrt()
        if not gamma:
            weight[left < HELD * lengths(inner)[:m]] = 0
        e = -combined(weight, rows)
        return unit(e) * step.length

    def personal(self, server: Server, client: Any, data: Any, turn: Turn) -> Tensor:
        never = (server.last[turn.ids] < 0)[:, None]
        return torch.where(never, server.w, server.models[turn.ids])


def unfairness(loss: Tensor) -> Tensor:
    """Return F = -cos(L, 1) (below eq. 2); if all losses are zero they count as equal."""
    size = loss.norm()
    return -loss.sum() / (size * len(loss) ** 0.5) if size else -torch.ones_like(size)


def slope_of_unfairness(loss: Tensor) -> Tensor:
    """Return h [m], the gradient of F in L (below eq. 5)."""
    size, ones = loss.norm(), len(loss) ** 0.5
    if not size:
        return torch.zeros_like(loss)
    return (loss.sum() * loss / (ones * size**2) - 1 / ones) / size


def unit(vectors: Tensor) -> Tensor:
    """Scale rows [m, P] to length 1; zeros stay zeros."""
    length = vectors.norm(dim=1, keepdim=True)
    return vectors / torch.where(length > 0, length, 1)


def spread(values: Tensor, present: Tensor) -> Tensor:
    """Spread values of present clients [m, ...] over the cohort [C, ...]; absent ones get 0."""
    whole = values.new_zeros(len(present), *values.shape[1:])
    whole[present] = values
    return whole
