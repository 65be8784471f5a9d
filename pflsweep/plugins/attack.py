"""Attacks: a fixed share of the clients is malicious and uploads something else than what it has trained."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, get_args, get_type_hints

import torch
from torch import Tensor

from pflsweep.methods.messages import field_types
from pflsweep.methods.protocol import Given, Method, Plugin, Verbs, hyper
from pflsweep.ops import random
from pflsweep.util.errors import BadReturn, UserError

FORGED = ("w", "delta", "g")  # fields of an upload that are forged: a model, or an update of one
CHOICE, FORGERY = 0xA77AC, 0xA1  # folded into a client's key, so that these draws differ from its others


@dataclass(frozen=True, kw_only=True)
class Attack(Plugin):
    """Base class of the attacks in section B of FedPG's supplement.

    Models and updates in the upload of a malicious client are forged; its other fields, such as losses, stay honest,
    and so does the model that it keeps. The malicious clients are chosen by their keys: for one seed they are the same
    for all methods. No evaluation counts them: every view is over honest clients only.
    """

    dp_incompatible_reason = ""

    share: float = hyper("share of the clients that is malicious; rounded down, but at least one", above=0, below=1)

    keys: Tensor  # [N] keys of all clients

    def malicious(self) -> Tensor:
        """Return which clients are malicious, [N] bool. Keys decide, so that the order of clients does not matter.

        Raises UserError if no client would be honest.
        """
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
        verbs: Any = partner  # type checkers do not know the verbs, which Method does not declare
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
        """Return what is uploaded in place of value [C, P].

        received: [C, P] the model that the clients were sent; None if it is not needed, or the value is an update.
        keys: [C] keys for draws.
        """
        raise NotImplementedError

    def _forge(self, up: Any, given: Given, rows: Tensor) -> Any:
        """Return an upload with some rows of its vectors forged. rows: positions of the malicious clients in it.

        Raises UserError if an upload cannot be forged.
        """
        # `refusal` has checked this already, unless the annotation of `finish` does not say what it returns.
        if reason := _unforgeable(type(up)):
            raise UserError(f"attack: the method's upload cannot be forged: {reason}.")
        new = {}
        for name in _vectors(type(up)):
            value = getattr(up, name)
            keys = random.fold(
                random.fold(random.fold(given.turn.key[rows], given.turn.round), FORGERY), FORGED.index(name)
            )
            received = self._received(given)[rows] if name == "w" and self.needs_received else None
            new[name] = value.index_copy(0, rows, self.forged(value[rows], received, keys))
        return up._replace(**new)

    def _received(self, given: Given) -> Tensor:
        """Return the model that the clients were sent [C, P]. Raises UserError if they were sent none."""
        # `refusal` has checked this already, unless the annotation of `send` does not say what it returns.
        if not hasattr(given.down, "w"):
            raise UserError("attack: it forges from the model received, and what the method sends has no `w`.")
        return given.down.w


@dataclass(frozen=True, kw_only=True)
class Gaussian(Attack):
    """Attack A1: upload Gaussian noise as the model or the gradient; with `around`, the model received plus noise.

    The code of FedPG's platform scales a forged gradient to the length of the honest one. The supplement does not
    mention this, and it is not done here.
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
    """Attack A2: upload the honest update times a factor: w + factor (w_i - w), or factor * g_i.

    With factor = 1 the upload is honest.
    """

    factor: float = hyper("what the update is multiplied by")

    @property
    def needs_received(self) -> bool:
        return True

    def forged(self, value: Tensor, received: Tensor | None, keys: Tensor) -> Tensor:
        return self.factor * value if received is None else value + (self.factor - 1) * (value - received)


def _messages(verb: Callable, *place: int) -> list[type]:
    """Return the messages that a verb may return by its annotation; [] where it has none, or none that can be read.

    place: indices into the annotation, where the verb returns a tuple.
    """
    try:
        said = get_type_hints(verb).get("return")
    except NameError:  # a type that is imported under TYPE_CHECKING alone
        return []
    for k in place:
        said = get_args(said)[k] if len(get_args(said)) > k else None
    return [message for message in (get_args(said) or (said,)) if hasattr(message, "_fields")]


def _vectors(message: type) -> list[str]:
    """Return the fields of a message that hold a vector. Raises BadReturn if the type of a field cannot be read."""
    return [name for name, kind in field_types(message).items() if kind == "vector"]


def _all_send_w(method: type[Method]) -> bool:
    """Return whether every message that a method's `send` may return has a field `w`."""
    return all("w" in message._fields for message in _messages(method.send))  # type: ignore[attr-defined]


def _unforgeable(message: type) -> str:
    """Return why an upload cannot be forged; "" if it can."""
    try:
        names = _vectors(message)
    except BadReturn as error:
        return str(error)
    others = [f"`{name}`" for name in names if name not in FORGED]
    if others:
        return f"its clients upload {', '.join(others)} too, for which the attacks are not defined"
    return "" if names else "its clients upload neither a model nor an update"
