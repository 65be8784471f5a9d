"""ALA (adaptive local aggregation), a plug-in: a client starts from a learnt mix of the global and its local model."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pflsweep.methods import stock
from pflsweep.methods.protocol import Given, Method, Plugin, Setup, Turn, Verbs, hyper, unexamined
from pflsweep.methods.task import Batch, Task
from pflsweep.ops.vmap import per_client, tree_map
from pflsweep.util.errors import UserError

# The weights have converged when the losses of the last WINDOW epochs have a standard deviation below SPREAD. Learning
# ends after CAP epochs at the latest. WINDOW and SPREAD are those of the first release of the authors' code, whose
# README calls .01 the value "in our paper"; since June 2023 the code has .1.
WINDOW, SPREAD, CAP = 10, 0.01, 100


class Client(NamedTuple):
    """The state of a client. D is the size of the mixed part of the model."""

    inner: Any  # the client's state in the method that ALA is combined with
    own: Tensor  # [D] the mixed part of Theta_i^{t-1}, the model that was trained in the client's last turn
    weight: Tensor  # [D] W_i^p in [0, 1]
    converged: Tensor  # [] bool: whether the initial stage is over
    mix: Tensor  # [P] Theta-hat_i, from which the last turn began, with the client's parameters that are never sent


class Work(NamedTuple):
    """The work of a turn: that of the method, and what Client keeps after it."""

    inner: Any
    weight: Tensor  # [C, D]
    converged: Tensor  # [C]
    mix: Tensor  # [C, P]


class Mixture(NamedTuple):
    """The two models that are mixed, in their mixed part, and the parameters above it."""

    own: Tensor  # [C, D] Theta_i^{t-1}
    gap: Tensor  # [C, D] Theta^{t-1} - Theta_i^{t-1}
    above: Tensor  # [C, P - part.stop] parameters above the mixed part, which are never sent
    part: slice  # the mixed part of w
    top: int  # blocks from the mixed part up

    def mix(self, weight: Tensor) -> Tensor:
        """Return the mixed part of Theta-hat for weights [..., D] (Eq. 4)."""
        return self.own + self.gap * weight

    def model(self, weight: Tensor) -> Tensor:
        """Return w[part.start:] of one client, the mixed part and what is above it, for weights [D]."""
        mix = self.mix(weight)
        return torch.cat([mix, self.above]) if len(self.above) else mix


class Learned(NamedTuple):
    """The weights while they learn."""

    weight: Tensor  # [C, D] W_i^p
    loss: Tensor  # [C] loss of the last batch, before its step


@dataclass(frozen=True, kw_only=True)
class Mixing:
    """The hyperparameters of ALA, which FedALA shares."""

    layers: int = hyper("p: the top blocks that are mixed; those below are overwritten", low=0)
    share: float = hyper("s: share of the local data on which the weights learn", low=0, high=1)
    rate: float = hyper("eta: learning rate of the weights", low=0)
    idle: float = hyper(
        "share of the rounds, the first ones, in which ALA does not act yet", neutral=0.0, low=0, high=1
    )
    draw: str = hyper(
        "the rows on which the weights learn: drawn at random, or a block of the order in which the client trains (a "
        "random one where train.shuffle is epoch)",
        neutral="random",
        choices=("random", "block"),
    )

    @property
    def resumable(self) -> bool:
        """Whether more rounds continue a finished run. With `idle` not: ALA's first round depends on their number."""
        return not self.idle

    def idle_rounds(self, rounds: int) -> int:
        """Return in how many of T rounds, the first ones, ALA does not act."""
        return int(self.idle * rounds + 1e-9)


@dataclass(frozen=True, kw_only=True)
class Ala(Mixing, Plugin):  # type: ignore[override]
    """Adaptive local aggregation (FedALA, Algorithm 1, lines 6 to 14), combined with a method that sends a model.

    Only `start` sees the mix: anchors and regularisers use the model that was sent. A method that is evaluated with its
    shared model, or with one made from it, is evaluated with the client's last mix instead. (Per-FedAvg: one step from
    the mix. FedRep: the mixed extractor with the head of that moment, both from before local training.) A personal
    model that a client keeps (Ditto, pFedMe, FedAMP, FedPHP, PartialFed) is evaluated without change.

    The paper leaves open, and here is chosen:
    - the initial stage is a client's first turn after it has a trained model (the paper's box says round 2 for all);
    - it has converged as in the first release of the authors' code (WINDOW, SPREAD), at the latest after CAP epochs;
    - the weights learn on the plain loss without dropout, on a sample that is drawn once a round and used completely;
    - where only a part of the model is sent (FedRep's extractor), the top blocks of that part are mixed;
    - where each client is sent a model of its own (FedAMP), that model is mixed, and training has to start from it.

    With layers = 0 the method's trajectory is unchanged, with rate = 0 up to rounding. It is also unchanged in the
    rounds in which ALA is idle (the paper's figure 4); the initial stage then follows them.
    """

    version = 4
    dp_incompatible_reason = "its weights learn on the data without noise and shape what a client trains and sends"

    task: Task

    def refusal(self, partner: type) -> str:
        if not issubclass(partner, Method):
            return ""
        if partner.supports_ala:
            return unexamined(partner, "supports_ala")
        return "what ALA mixes is not what it trains or is evaluated from (fedala has it built in)"

    def check(self, method: Method) -> None:
        if isinstance(method.supports_ala, tuple):
            name, value = method.supports_ala
            if (given := getattr(method, name)) != value:
                raise UserError(
                    f"ala=on does not go with algorithm.{name}={given}: local training would not start from what ALA "
                    f"mixes. Use algorithm.{name}={value}."
                )

    def plug(self, verbs: Verbs) -> Verbs:
        def below(given: Given) -> Given:
            return given._replace(client=given.client.inner)

        def init_client(w: Tensor, setup: Setup) -> Client:
            sent = w[: len(getattr(verbs.init(w, setup), "w", w))]
            own, never = sent[self._mixed(len(sent))], torch.zeros((), dtype=torch.bool, device=w.device)
            return Client(verbs.init_client(w, setup), own, torch.ones_like(own), never, w)

        def start(given: Given, data: Any) -> Work:
            model, sent = given.down.w, given.down.w.shape[1]
            if sent < self.task.size:
                model = torch.cat([model, verbs.start(below(given), data).w[:, sent:]], 1)
            weight, mix = self._adapt(given, model, data)
            inner = verbs.start(below(given)._replace(down=given.down._replace(w=mix)), data)
            whole = torch.cat([mix, model[:, sent:]], 1) if sent < self.task.size else mix
            return Work(inner, weight, given.client.converged | self._active(given.turn), whole)

        def fit(given: Given, data: Any, work: Work) -> Work:
            return work._replace(inner=verbs.fit(below(given), data, work.inner))

        def finish(given: Given, data: Any, work: Work) -> tuple[Any, Client]:
            up, inner = verbs.finish(below(given), data, work.inner)
            own = up.w[:, self._mixed(up.w.shape[1])]
            return up, Client(inner, own, work.weight, work.converged, work.mix)

        def answer(given: Given, data: Any, question: Any) -> Any:
            return verbs.answer(below(given), data, question)

        def personal(server: Any, client: Client, data: Any, turn: Turn) -> Tensor:
            if not hasattr(server, "w"):
                return verbs.personal(server, client.inner, data, turn)
            mixed = (turn.last > self.idle_rounds(turn.rounds))[:, None]
            if len(server.w) < self.task.size:
                # The parameters that are never sent have been trained since the mix was made, and do not fit it. So
                # the whole mix is evaluated, with those of its moment.
                return torch.where(mixed, client.mix, verbs.personal(server, client.inner, data, turn))
            server = server._replace(w=torch.where(mixed, client.mix, stock.to_all(server.w, turn)))
            return verbs.personal(server, client.inner, data, turn)

        return verbs._replace(
            init_client=init_client, start=start, fit=fit, finish=finish, answer=answer, personal=personal
        )

    def _active(self, turn: Turn) -> Tensor:
        """Return which clients mix in this round [C]: those that have a trained model, once ALA is no longer idle."""
        return (turn.last >= 0) & (turn.round > self.idle_rounds(turn.rounds))

    def _mixed(self, sent: int) -> slice:
        """Return the slice with the top `layers` blocks of the first `sent` parameters. Raises UserError."""
        starts = [block.start for block in self.task.blocks if block.stop <= sent]
        if self.layers > len(starts):
            raise UserError(
                f"layers is {self.layers} (algorithm.layers or ala.layers), but what is sent has {len(starts)} blocks: "
                "use at most as many."
            )
        return slice(starts[-self.layers], sent) if self.layers else slice(sent, sent)

    def _adapt(self, given: Given, model: Tensor, data: Any) -> tuple[Tensor, Tensor]:
        """Return the learnt weights W_i [C, D], and the mix Theta-hat of the parameters that were sent.

        model: [C, P] the parameters that were sent, below those that the client never sends.
        """
        client, sent = given.client, given.down.w
        part, active = self._mixed(sent.shape[1]), self._active(given.turn)
        weight, theta, mixture = client.weight, sent[:, part], self._mixture(client, model, part)
        if active.any() and theta.shape[1] and self.rate and self.share:
            weight = self._learn(client, mixture, self._sample(model, part, data), active)
        mixed = torch.where(active[:, None], mixture.mix(weight), theta)
        return weight, torch.cat([sent[:, : part.start], mixed], 1)

    def _learn(self, client: Client, mixture: Mixture, sample: list[Batch], active: Tensor) -> Tensor:
        """Return the learnt W_i^p [C, D] (lines 8 to 14).

        The weights learn until convergence in a client's initial stage, and for one epoch in later turns.
        """
        learned, running, losses = Learned(client.weight, client.weight.new_zeros(len(active))), active, []
        for epoch in range(1, CAP + 1):
            weight, loss = stock.run(self._step, mixture, tree_map(torch.clone, learned), sample)
            learned = Learned(
                torch.where(running[:, None], weight, learned.weight), torch.where(running, loss, learned.loss)
            )
            losses.append(learned.loss)
            flat = epoch > WINDOW and torch.stack(losses[-WINDOW:]).std(0, correction=0) < SPREAD
            running = running & ~(client.converged | flat)
            if not running.any():
                break
        return learned.weight

    def curve(self, given: Given, data: Any, epochs: int) -> list[float]:
        """Return the loss of one client's Theta-hat before and after each of some epochs in which its weights learn.

        It starts where the client's next turn would, and the loss is on the rows on which the weights learn. The method
        has to send whole models.
        """
        client, model = given.client, given.down.w
        part = self._mixed(model.shape[1])
        sample, mixture = self._sample(model, part, data), self._mixture(client, model, part)
        learned, losses = Learned(client.weight, model.new_zeros(1)), []
        rows = torch.tensor([batch.y.shape[1] for batch in sample], dtype=torch.float64)
        for epoch in range(epochs + 1):
            if epoch:
                learned = stock.run(self._step, mixture, learned, sample)
            seen = [self._step(mixture, learned, batch).loss for batch in sample]
            losses.append(float(torch.cat(seen).double().cpu() @ rows / rows.sum()))
        return losses

    def _mixture(self, client: Client, model: Tensor, part: slice) -> Mixture:
        """Return what the weights mix. model: [C, P], as in _adapt."""
        return Mixture(client.own, model[:, part] - client.own, model[:, part.stop :], part, self._top(part))

    def _top(self, part: slice) -> int:
        """Return the number of blocks from the mixed part up."""
        return sum(block.start >= part.start for block in self.task.blocks)

    def _sample(self, model: Tensor, part: slice, data: Any) -> list[Batch]:
        """Return the batches on which the weights learn, as the blocks from the mixed part up see them.

        The blocks below are not mixed, so that they run only once.
        """
        large, top = data.sample(self.share, "ala", self.draw == "block"), self._top(part)
        return [batch for rows in large for batch in data.cut(self._seen_by_top(model, rows, top))]

    @per_client
    def _seen_by_top(self, model: Tensor, batch: Batch, top: int) -> Batch:
        """Return a batch as the `top` topmost blocks see it."""
        return self.task.batch_below(model, batch, top)

    @per_client
    def _step(self, mixture: Mixture, learned: Learned, batch: Batch) -> Learned:
        """Take a step of the weights: W <- clip(W - eta (Theta - Theta_i) * grad L(Theta-hat), 0, 1) (Eq. 5)."""
        weight = learned.weight
        loss, grad = self.task.value_and_grad(mixture.model(weight), batch, part=mixture.part, top=mixture.top)
        return Learned((weight - self.rate * mixture.gap * grad).clamp(0, 1), loss)
