"""Malicious clients: a fixed share of the federation uploads something else than what it has trained."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, get_args, get_type_hints

import torch
from torch import Tensor

from pflsweep.methods.protocol import Given, Method, Plugin, Vector, Verbs, hyper
from pflsweep.ops import random
from pflsweep.util.errors import UserError

FORGED = ("w", "delta", "g")  # fields of an upload that are forged: a model, or what leads from one to another
CHOICE, NOISE = 0xA77AC, 0xA1  # what tells these draws from the others of a client's key


@dataclass(frozen=True, kw_only=True)
class Attack(Plugin):
    """The attacks in section B of FedPG's supplement. The other fields of an upload, losses above all, stay honest.

    Malicious is the same share of the clients for all methods under one seed, chosen by the clients' keys. They count
    nowhere in the evaluation: every view, and every number made from it, is over honest clients alone. What a malicious
    client keeps for itself, it has trained honestly.
    """

    dp_incompatible_reason = ""

    share: float = hyper("share of the clients that is malicious; rounded down, but at least one", above=0, below=1)

    keys: Tensor  # [N] of all clients

    def malicious(self) -> Tensor:
        """[N] Wherever a client stands in the list, its key decides."""
        count = max(1, int(len(self.keys) * self.share + 1e-9))
        if count == len(self.keys):
            raise UserError(f"attack.share is {self.share}: of {count} clients none would be honest. Use more clients.")
        return random.fold(self.keys, CHOICE).argsort().argsort() < count

    def plug(self, verbs: Verbs) -> Verbs:
        malicious = self.malicious()

        def finish(given: Given, data: Any, work: Any) -> tuple[Any, Any]:
            up, client = verbs.finish(given, data, work)
            rows = torch.isin(given.turn.key, self.keys[malicious].to(given.turn.key.device)).nonzero()[:, 0]
            return self._forge(up, given, rows) if len(rows) else up, client

        return verbs._replace(finish=finish, malicious=malicious)

    def refusal(self, partner: type) -> str:
        if not issubclass(partner, Method):
            return ""
        verbs: Any = partner  # its verbs are no attributes of Method
        for message in _messages(verbs.finish, 0):
            if reason := _unforgeable(message):
                return reason
            if self.needs_received and "w" in _vectors(message) and not _all_send_w(partner):
                return "it sends its clients no shared model `w`, beside which this attack puts what it uploads"
        return ""

    @property
    def needs_received(self) -> bool:
        """Whether a forged model is made from the one received."""
        raise NotImplementedError

    def forged(self, value: Tensor, received: Tensor | None, keys: Tensor) -> Tensor:
        """In place of value [C, P]. received [C, P]: where it is a model, the one that was sent. keys: [C] of draws."""
        raise NotImplementedError

    def _forge(self, up: Any, given: Given, rows: Tensor) -> Any:
        """An upload with the malicious rows of its vectors exchanged."""
        if reason := _unforgeable(type(up)):  # of a method whose `finish` does not say what it returns
            raise UserError(f"attack: the method's upload cannot be forged: {reason}.")
        new = {}
        for name in _vectors(type(up)):
            value = getattr(up, name)
            keys = random.fold(
                random.fold(random.fold(given.turn.key[rows], given.turn.round), NOISE), FORGED.index(name)
            )
            received = self._received(given)[rows] if name == "w" and self.needs_received else None
            new[name] = value.index_copy(0, rows, self.forged(value[rows], received, keys))
        return up._replace(**new)

    def _received(self, given: Given) -> Tensor:
        """The model that was sent. [C, P]"""
        if not hasattr(given.down, "w"):  # of a method whose `send` does not say what it returns
            raise UserError("attack: it forges from the model received, and what the method sends has no `w`.")
        return given.down.w


@dataclass(frozen=True, kw_only=True)
class Gaussian(Attack):
    """A1: a model, or a gradient, of Gaussian noise alone; `around`: around the model received.

    Their platform's code gives a forged gradient the length of the honest one, of which the supplement says nothing.
    """

    sigma: float = hyper("standard deviation of the noise", low=0)
    around: bool = hyper("whether a model's noise is added to the model received, or stands alone")

    @property
    def needs_received(self) -> bool:
        return self.around

    def forged(self, value: Tensor, received: Tensor | None, keys: Tensor) -> Tensor:
        noise = torch.func.vmap(lambda key: random.normal(key, value.shape[1:]).to(value.dtype))(keys)
        return self.sigma * noise if received is None else received + self.sigma * noise


@dataclass(frozen=True, kw_only=True)
class Scaled(Attack):
    """A2: the honest update times a factor: w + factor (w_i - w), factor * g_i. With factor = 1 nobody attacks."""

    factor: float = hyper("what the update is multiplied by")

    @property
    def needs_received(self) -> bool:
        return True

    def forged(self, value: Tensor, received: Tensor | None, keys: Tensor) -> Tensor:
        return self.factor * value if received is None else value + (self.factor - 1) * (value - received)


def _messages(verb: Callable, *place: int) -> list[type]:
    """The NamedTuples that a verb's annotation says it returns, at a place of the tuple; [] where it says nothing."""
    said = get_type_hints(verb).get("return")
    for k in place:
        said = get_args(said)[k] if len(get_args(said)) > k else None
    return [message for message in (get_args(said) or (said,)) if hasattr(message, "_fields")]


def _vectors(message: type) -> list[str]:
    """The fields of a message that hold a vector."""
    hints = get_type_hints(message, include_extras=True)
    return [name for name, hint in hints.items() if Vector in (hint, *get_args(hint))]


def _all_send_w(method: type[Method]) -> bool:
    return all("w" in message._fields for message in _messages(method.send))  # type: ignore[attr-defined]


def _unforgeable(message: type) -> str:
    """Why an upload cannot be forged; "" where it can."""
    names = _vectors(message)
    others = [f"`{name}`" for name in names if name not in FORGED]
    if others:
        return f"its clients upload {', '.join(others)} too, for which the attacks are not defined"
    return "" if names else "its clients upload neither a model nor an update"
