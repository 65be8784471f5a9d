"""What a method is: thirteen verbs over plain states.

    init(w, setup) -> Server               init_client(w, setup) -> Client
    send(server, turn) -> Down             start(given, data) -> Work
    fit(given, data, work) -> Work         (stock: E epochs of step)        step(given, work, batch) -> Work
    finish(given, data, work) -> Up, Client
    aggregate(server, up, turn) -> Server  (may ask back: `replies = yield Question(...)`)
    answer(given, data, question) -> Reply
    personal(server, client, data, turn) -> w [C, P]      global_model(server) -> w [P] or None
    logits(w, x) -> [B, K]                 show(server) -> what to log and draw

Server, Client, Down, Work, Up, Question and Reply are NamedTuples of tensors that the method defines. Only Down, Up,
Question and Reply cross the wire, and what crosses is counted by the type of each field: Vector, Scalars or Ids; Kept
does not cross.
Verbs are pure. One exception: the engine owns what `start` returned, and the optimiser may write into it. Work has
optimiser states (of self.opt.init) in fields named `opt` or ..._opt: with train.optimiser_state=kept the engine puts
those of a client's last turn there.

A toy that runs (docs/design.md explains it): a client's training begins between the global model and its own, and the
same mixture is what it predicts with. N = 4 clients, a cohort of M = 2, a model of P = 650 parameters.

>>> from dataclasses import dataclass
>>> from typing import NamedTuple
>>> import torch
>>> from torch import Tensor
>>> from pflsweep.methods import stock
>>> from pflsweep.methods.optimizer import Sgd
>>> from pflsweep.methods.protocol import Method, Verbs, hyper
>>> class Client(NamedTuple):
...     v: Tensor  # [P] the client's own model
>>> @dataclass(frozen=True, kw_only=True)
... class Between(Method):
...     "Start each turn between the global model and the client's own."
...
...     paper = "none: an example"
...     unsampled_model = "a mixture of the global and the initial model"
...     mix: float = hyper("weight of the client's own model", low=0, high=1)
...
...     init = stock.global_server  # w -> Server(w [P])
...     send = stock.broadcast  # Server -> Down(w [C, P])
...     step = stock.sgd_step  # one batch of one client: w [P] - lr * gradient [P]
...     fit = stock.local_epochs  # Work -> Work, all batches of the turn
...     aggregate = stock.average  # turn.share [M] @ up.w [M, P] -> Server(w [P])
...     global_model = stock.shared_model  # Server -> w [P]
...
...     def init_client(self, w, setup):
...         return Client(w)
...
...     def start(self, given, data):
...         w = torch.lerp(given.down.w, given.client.v, self.mix)  # [C, P]
...         return stock.Work(w, self.opt.init(w))
...
...     def finish(self, given, data, work):
...         return stock.Up(work.w), Client(work.w)  # to the server, to the client's row
...
...     def personal(self, server, client, data, turn):
...         return torch.lerp(stock.to_all(server.w, turn), client.v, self.mix)  # [C, P]
>>> from pflsweep.config.compose import compose
>>> from pflsweep.engine.simulation import Simulation
>>> from pflsweep.trial.build import build
>>> keys = ["partition.clients=4", "train.rounds=3", "train.epochs=1", "train.workers=1", "device=cpu", "model.hidden=[]"]
>>> parts = build(compose(keys))  # digits in a federation, a task and a schedule
>>> method = Between(task=parts.task, opt=Sgd(momentum=0.0, weight_decay=0.0), epochs=1, mix=0.5)
>>> w = parts.task.vector(parts.model)  # [P] the initial model
>>> simulation = Simulation(Verbs.of(method), parts.task, parts.federation, parts.schedule, w)
>>> for result in simulation.run():
...     print(result.round, "trained clients", result.ids.tolist(), "floats up, each:", result.traffic.floats_up)
1 trained clients [0, 2] floats up, each: 650.0
2 trained clients [1, 2] floats up, each: 650.0
3 trained clients [0, 1] floats up, each: 650.0
>>> simulation.server.w.shape, simulation.clients.get(torch.arange(4)).v.shape  # [P] and [N, P]
(torch.Size([650]), torch.Size([4, 650]))
>>> views = {name: scores.accuracy.mean() for name, scores in result.scores.items()}
>>> bool(views["personal"] > views["global"])
True
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, NamedTuple

from torch import Tensor

from pflsweep.config.fields import hyper as hyper  # so that a method needs one import
from pflsweep.methods.optimizer import Sgd
from pflsweep.methods.task import Task

Vector = Annotated[Tensor, "vector"]  # [C, P], or a slice of P, or several of them: counted in floats on the wire
Scalars = Annotated[Tensor, "scalars"]  # a few numbers for each client
Ids = Annotated[Tensor, "ids"]  # whole numbers, such as client ids or class counts
Kept = Annotated[Tensor, "kept"]  # what the receiver has from earlier rounds: stored once, by the server, for all


class Setup(NamedTuple):
    """What everybody knows before training; it costs no communication."""

    clients: int  # N
    cohort: int  # M, clients in a round
    rounds: int  # T
    classes: int  # K
    sizes: Tensor  # [N] training samples of each client
    key: Tensor  # [] int64 of the run's seed, for ops.random: what a method draws of its own, such as layers


class Turn(NamedTuple):
    """A round, as its cohort (or one chunk of it) sees it, in the order of the clients' keys. In `personal` the ids are
    clients to evaluate, no cohort: share means nothing there, and round is the last one done.
    """

    ids: Tensor  # [C]
    share: Tensor  # [C] aggregation weight, 1 in sum over the cohort
    n: Tensor  # [C] training samples
    last: Tensor  # [C] round of the client's previous turn, -1 never
    key: Tensor  # [C] int64, the client's key for random.fold and random.uniform: seed and client, not the round
    round: int  # from 1
    lr: float  # [C] where it is each client's own: with train.lr_of=last_turn, and among stacked trials
    rounds: int  # T
    round_lr: float  # the round's learning rate, whatever `lr` is


class Given(NamedTuple):
    """Constant for a client from `start` to `finish`. In `answer`, client is already what `finish` returned."""

    down: Any
    client: Any
    turn: Turn
    labels: Tensor  # [C, K] class counts of the training data


class Empty(NamedTuple):
    """A state, or a message, with nothing in it."""


@dataclass(frozen=True, kw_only=True)
class Method:
    """A personalised federated learning method. Its hyperparameters are its fields; its verbs are on this page.

    Verbs are written as methods or named stock parts (`send = stock.broadcast`); see algorithms/fedavg.py first.
    """

    task: Task
    opt: Sgd
    epochs: int  # E, local epochs

    kind: ClassVar[str] = "method"  # configs are checked by it, without importing this module
    paper: ClassVar[str]  # authors, title, venue, year
    version: ClassVar[int] = 1  # raised when the numbers change; part of a trial's identity
    resumable: ClassVar[bool] = True  # whether more rounds continue a finished run (nothing depends on T)
    # whether ALA may go in front: training starts from what was sent, down.w; or where it does, (hyperparameter, value)
    supports_ala: ClassVar[bool | tuple[str, Any]] = False
    # whether train.lr_of=last_turn goes with it: turn.lr is read inside @per_client alone, elsewhere turn.round_lr
    own_lr: ClassVar[bool] = False
    unsampled_model: ClassVar[str]  # what a client that was never sampled is evaluated with
    cost: ClassVar[str] = ""  # what a round takes beside FedAvg's: passes over data, reads and writes of P numbers
    # "": only what gradient steps made leaves a client
    dp_incompatible_reason: ClassVar[str] = "what it sends has not been examined"
    reconstruction: ClassVar[str] = ""  # what of it is not in its paper and was reconstructed here

    @classmethod
    def passes(cls, epochs: int, **values: Any) -> float:
        """Gradients that a sample takes in training where FedAvg takes one, by the hyperparameters; a sweep's plan
        counts with them. 1 is near enough where what comes on top is cheap.
        """
        return 1

    def logits(self, w: Tensor, x: Tensor) -> Tensor:
        return self.task.logits(w, x)

    def show(self, server: Any) -> dict[str, Tensor]:
        """Scalars [] to log every round and matrices [a, b] to draw, by name."""
        return {}

    def plugins(self) -> tuple["Plugin", ...]:
        """Plug-ins that are a part of the method itself (FedALA is FedAvg with ALA)."""
        return ()


class Plugin:
    """Something that composes with methods by replacing a few of their verbs: ALA, an attack, DP-SGD."""

    kind: ClassVar[str] = "plug-in"  # as a method's
    version: ClassVar[int] = 1  # raised when the numbers change; part of a trial's identity
    resumable: ClassVar[bool] = True  # as a method's
    dp_incompatible_reason: ClassVar[str] = "what it does has not been examined"  # as a method's

    def plug(self, verbs: "Verbs") -> "Verbs":
        raise NotImplementedError

    def refusal(self, partner: type) -> str:
        """Why this does not go with a method or another plug-in, of which it is given the class; "" where it does."""
        return ""

    def check(self, method: Method) -> None:
        """Raises UserError where it does not go with a method's hyperparameters."""


class Spent(NamedTuple):
    """What private training each of some clients has done, for its epsilon."""

    steps: Tensor  # [C] int64 batches of which a noisy gradient was taken
    rate: Tensor  # [C] float64 probability with which a sample was in such a batch; the largest
    looks: Tensor  # [C] int64 noisy gradients of one batch; the most
    turns: Tensor  # [C] int64 rounds with such batches


class Verbs(NamedTuple):
    """A method's verbs as plain functions, so that a plug-in can replace a few of them.

    Below them stands what only plug-ins have: which clients count nowhere in an evaluation, and what training costs
    in privacy; then what they are the verbs of.
    """

    init: Callable
    init_client: Callable
    send: Callable
    start: Callable
    fit: Callable
    finish: Callable
    aggregate: Callable
    answer: Callable
    personal: Callable
    global_model: Callable
    logits: Callable
    show: Callable
    malicious: Tensor | None = None  # [N]
    epsilon: Callable[[Spent], Tensor] | None = None  # [C] float64
    method: Method | None = None
    plugins: tuple[Plugin, ...] = ()

    @classmethod
    def of(cls, method: Method, *plugins: "Plugin") -> "Verbs":
        """The method's own verbs, changed by its own plug-ins first and then by these."""
        names = [name for name in cls._fields if name not in cls._field_defaults]
        found: dict[str, Any] = {verb: getattr(method, verb, _absent(verb)) for verb in names}
        verbs = cls(**found, method=method, plugins=plugins)
        for plugin in (*method.plugins(), *plugins):
            plugin.check(method)
            verbs = plugin.plug(verbs)
        return verbs


def _absent(verb: str) -> Callable:
    def absent(*args: Any) -> Any:
        raise NotImplementedError(f"the method was asked to {verb}, but does not define it")

    return absent
