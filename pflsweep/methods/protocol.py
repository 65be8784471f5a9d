"""The protocol of a method: thirteen functions, its verbs, over plain states.

    init(w, setup) -> Server               init_client(w, setup) -> Client
    send(server, turn) -> Down             start(given, data) -> Work
    fit(given, data, work) -> Work         (stock: E epochs of step)        step(given, work, batch) -> Work
    finish(given, data, work) -> Up, Client
    aggregate(server, up, turn) -> Server  (may ask back: `replies = yield Question(...)`)
    answer(given, data, question) -> Reply
    personal(server, client, data, turn) -> w [C, P]      global_model(server) -> w [P] or None
    logits(w, x) -> [B, K]                 show(server) -> what to log and draw

Server, Client, Down, Work, Up, Question and Reply are NamedTuples of tensors that the method defines. Only Down, Up,
Question and Reply are sent between server and clients. The communication cost is counted by the type of each of their
fields: Vector, Scalars or Ids; a field of type Kept is not sent and costs nothing.

Verbs are pure, with one exception: the engine owns what `start` returned, and the optimiser may write into it.
Optimiser states (what `self.opt.init` returns) are fields of Work named `opt` or ..._opt. With
train.optimiser_state=kept the engine fills them with the states at the end of the client's last turn.

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
    >>> keys = ["partition.clients=4", "train.rounds=3", "train.epochs=1", "train.workers=1", "device=cpu"]
    >>> parts = build(compose([*keys, "model.hidden=[]"]))  # digits in a federation, a task and a schedule
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
from difflib import get_close_matches
from typing import Any, ClassVar, NamedTuple, NoReturn

from torch import Tensor

# Exported from here, so that a method needs one import.
from pflsweep.config.fields import hyper as hyper
from pflsweep.methods.messages import Ids as Ids
from pflsweep.methods.messages import Kept as Kept
from pflsweep.methods.messages import Scalars as Scalars
from pflsweep.methods.messages import Vector as Vector
from pflsweep.methods.optimizer import Sgd
from pflsweep.methods.task import Task
from pflsweep.util.errors import UserError
from pflsweep.util.once import warn_once


class Setup(NamedTuple):
    """Facts that server and clients know before training. They are not counted as communication."""

    clients: int  # N
    cohort: int  # M, clients in a round; the first may have more
    rounds: int  # T
    classes: int  # K
    sizes: Tensor  # [N] training samples of each client
    key: Tensor  # [] int64 made from the seed, for ops.random: for a method's own draws, such as initial layers
    keys: Tensor  # [N] int64 made from seed and client: for draws for each client, which do not depend on their order
    first_cohort: int = 0  # clients in round 1 (train.first_round=all); 0: M


class Turn(NamedTuple):
    """The facts of a round for some of its clients: ids, weights, learning rates. Clients are ordered by their keys.

    In `personal` the ids are the clients to evaluate, not a cohort: there `share` is meaningless and `round` is the
    last round that is done.
    """

    ids: Tensor  # [C]
    share: Tensor  # [C] aggregation weight; the weights of the cohort sum to 1
    n: Tensor  # [C] training samples
    last: Tensor  # [C] round of the client's previous turn; -1 before its first
    key: Tensor  # [C] int64 made from seed and client, not from the round: for random.fold and random.uniform
    round: int  # counted from 1
    lr: float | Tensor  # learning rate; [C] where clients differ: with train.lr_of=last_turn and in stacked trials
    rounds: int  # T
    round_lr: float  # the round's learning rate, also where `lr` differs among clients


class Given(NamedTuple):
    """The inputs of a client's turn, constant from `start` to `finish`.

    In `answer` the field `client` already is what `finish` returned.
    """

    down: Any  # the message from the server
    client: Any  # the client's state
    turn: Turn
    class_counts: Tensor  # [C, K] training rows of each class


class Empty(NamedTuple):
    """A state, or a message, with nothing in it."""


@dataclass(frozen=True, kw_only=True)
class Method:
    """Base class of personalised federated learning methods. Hyperparameters are fields; the module lists the verbs.

    A verb is defined as a method or taken from methods/stock.py (`send = stock.broadcast`). algorithms/fedavg.py is
    the simplest example.
    """

    task: Task
    opt: Sgd
    epochs: int  # E, local epochs

    # config/schema.py checks the class of an option by `kind`, so that it need not import this module.
    kind: ClassVar[str] = "method"
    paper: ClassVar[str]  # authors, title, venue, year
    version: ClassVar[int] = 1  # raised when the numbers change; part of a trial's identity
    resumable: ClassVar[bool] = True  # whether more rounds continue a finished run (nothing depends on T)
    # `supports_ala`, `supports_per_client_lr` and `dp_incompatible_reason` are about what the client's verbs do. A
    # class with another start, step, fit or finish than its parent has to say them anew (see `unexamined`).
    # Whether ALA can be combined with the method: training has to start from the model that was sent, down.w. A pair
    # (hyperparameter, value): only with this value.
    supports_ala: ClassVar[bool | tuple[str, Any]] = False
    # Whether train.lr_of=last_turn works: turn.lr is read inside @per_client only, and turn.round_lr elsewhere.
    supports_per_client_lr: ClassVar[bool] = False
    # Fields of the server's state that hold a row of each client, as its last turn left it. With metrics.personal=stale
    # these are the new ones, and all others as they were when the turn began.
    rows_on_server: ClassVar[tuple[str, ...]] = ()
    unsampled_model: ClassVar[str]  # what a client that was never sampled is evaluated with
    cost: ClassVar[str] = ""  # cost of a round beyond FedAvg's: passes over data, reads and writes of P numbers
    # Why DP-SGD's epsilon would be wrong; "" if a client sends nothing but the result of gradient steps
    dp_incompatible_reason: ClassVar[str] = "what it sends has not been examined"
    reads_test_rows: ClassVar[str] = ""  # what it does with clients' test rows; "": it never sees them
    reconstruction: ClassVar[str] = ""  # the parts that the paper leaves open and that were reconstructed here

    @classmethod
    def relative_gradients(cls, epochs: int, **values: Any) -> float:
        """Return how many gradients a sample takes in training where FedAvg takes one.

        values: the hyperparameters, and `clients` (N) and `cohort` (M). A sweep's plan estimates its time by this
        number; cheap additions may be ignored.
        """
        return 1

    def logits(self, w: Tensor, x: Tensor) -> Tensor:
        """Return the logits [B, K] of a personalised model w [P] on inputs x [B, ...]."""
        return self.task.logits(w, x)

    def show(self, server: Any) -> dict[str, Tensor]:
        """Return by name scalars [] to log every round and matrices [a, b] to draw."""
        return {}

    def plugins(self) -> tuple["Plugin", ...]:
        """Return the plug-ins that are part of the method itself (FedALA is FedAvg with ALA)."""
        return ()


def unexamined(cls: type, attribute: str) -> str:
    """Return why an inherited attribute may be wrong for a subclass; "" if the class sets it or changed no client verb.

    attribute: its name, such as `supports_ala`. Its value was judged for the client verbs of the class that says it,
    and may be wrong where a subclass replaces one.
    """
    says = next(one for one in cls.__mro__ if attribute in vars(one))
    for one in cls.__mro__[: cls.__mro__.index(says)]:
        if changed := next((verb for verb in ("start", "step", "fit", "finish") if verb in vars(one)), None):
            return (
                f"{one.__name__} has another `{changed}` than {says.__name__}, whose {attribute} it inherits: say "
                f"{attribute} in {one.__name__} itself"
            )
    return ""


class Plugin:
    """Base class of what can be combined with any method by replacing some of its verbs: ALA, an attack, DP-SGD.

    The class attributes mean what they mean in Method.
    """

    kind: ClassVar[str] = "plug-in"
    version: ClassVar[int] = 1
    resumable: ClassVar[bool] = True
    dp_incompatible_reason: ClassVar[str] = "what it does has not been examined"

    def plug(self, verbs: "Verbs") -> "Verbs":
        """Return the verbs with some of them replaced."""
        raise NotImplementedError

    def refusal(self, partner: type) -> str:
        """Return why this cannot be combined with a class of methods or plug-ins; "" if it can."""
        return ""

    def check(self, method: Method) -> None:
        """Raise UserError if this cannot be combined with the method's hyperparameters."""


class Spent(NamedTuple):
    """The private training that each of some clients has done, from which its epsilon is computed."""

    steps: Tensor  # [C] int64 batches of which a noisy gradient was taken
    rate: Tensor  # [C] float64 largest probability with which a sample was in such a batch
    gradients: Tensor  # [C] int64 largest number of noisy gradients that were taken of one batch
    turns: Tensor  # [C] int64 rounds with such batches


class Verbs(NamedTuple):
    """A method's verbs as plain functions, so that a plug-in can replace a few of them.

    The fields below the verbs are set by plug-ins (which clients no evaluation counts, what training costs in
    privacy) or name the method and the plug-ins that the verbs belong to.
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
    malicious: Tensor | None = None  # [N] bool: clients that no evaluation counts; set by an attack
    epsilon: Callable[[Spent], Tensor] | None = None  # [C] float64
    method: Method | None = None
    plugins: tuple[Plugin, ...] = ()

    @property
    def who(self) -> str:
        """The names of the classes that the verbs are of, for messages."""
        parts = [part for part in (self.method, *self.plugins) if part is not None]
        return " or ".join(type(part).__name__ for part in parts) or "A verb of the method"

    @classmethod
    def of(cls, method: Method, *plugins: "Plugin") -> "Verbs":
        """Return the verbs of a method, changed by its own plug-ins first and then by the given ones.

        Raises UserError if the method lacks a verb, or a plug-in cannot be combined with its hyperparameters.
        """
        names = [name for name in cls._fields if name not in cls._field_defaults]
        there = {verb: getattr(method, verb) for verb in names if hasattr(method, verb)}
        found: dict[str, Any] = {"answer": _no_answer, **there}
        if lacks := [verb for verb in names if verb not in found]:
            raise UserError(
                f"{type(method).__name__} has no {' and no '.join(lacks)}: a method defines each of its verbs, or "
                "takes it from pflsweep.methods.stock, as in `send = stock.broadcast`."
            )
        _warn_if_misspelt(type(method), names)
        verbs = cls(**found, method=method, plugins=plugins)
        for plugin in (*method.plugins(), *plugins):
            plugin.check(method)
            verbs = plugin.plug(verbs)
        return verbs


def _warn_if_misspelt(method: type[Method], verbs: list[str]) -> None:
    """Warn about a function of a user's own method that is named almost as a verb, which then is the parent's."""
    known = {*verbs, *dir(Method), "step"}
    for cls in method.__mro__:
        if cls.__module__.partition(".")[0] in ("pflsweep", "builtins"):
            continue
        for name in vars(cls):
            if not name.startswith("_") and name not in known and (guess := get_close_matches(name, verbs, 1, 0.85)):
                warn_once(__name__, f"{cls.__name__}.{name} is no verb of a method. Did you mean `{guess[0]}`?")


def _no_answer(given: Given, data: Any, question: Any) -> NoReturn:
    """Stand in for `answer` in a method that does not define it. Raises NotImplementedError."""
    raise NotImplementedError("`aggregate` asks the clients a question, and the method defines no `answer`")
