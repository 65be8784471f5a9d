"""One round of a cohort: chunks of clients run start, fit and finish to the end; send and aggregate see all."""

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple, get_args, get_type_hints

import torch
from torch import Tensor

from pflsweep.data.federation import Data
from pflsweep.engine.lift import leaves, tree_map
from pflsweep.engine.protocol import Given, Turn, Verbs


class Clients:
    """The state of all N clients, one row each: the store that `finish` writes to in place.

    A client that was never sampled has no row of its own; it is read as the common initial state.
    """

    def __init__(self, initial: Any, clients: int) -> None:
        self._initial = initial
        self._rows = tree_map(lambda v: torch.zeros((clients, *v.shape), dtype=v.dtype, device=v.device), initial)
        self.seen = torch.zeros(clients, dtype=torch.bool)

    def get(self, ids: Tensor) -> Any:
        """The rows of some clients, copied: [C, ...] each."""
        seen = self.seen[ids]

        def read(rows: Tensor, initial: Tensor) -> Tensor:
            out = rows[ids.to(rows.device)]
            if not seen.all():
                out[~seen.to(out.device)] = initial
            return out

        return tree_map(read, self._rows, self._initial)

    def put(self, ids: Tensor, rows: Any) -> None:
        """Write the rows of some clients."""
        tree_map(lambda store, new: store.index_copy_(0, ids.to(store.device), new), self._rows, rows)
        self.seen[ids] = True

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps: the rows of clients that have one."""
        ids = self.seen.nonzero().flatten()
        return {"ids": ids, "rows": leaves(self.get(ids)) if len(ids) else []}

    def load(self, state: dict[str, Any]) -> None:
        self.seen[:] = False
        if len(state["ids"]):
            supply = iter(state["rows"])
            self.put(state["ids"], tree_map(lambda _: next(supply), self._rows))


class Traffic(NamedTuple):
    """What crossed the wire in a round, for one client of the cohort on average."""

    floats_down: float  # multiples of model parts
    floats_up: float
    others_down: float  # scalars and ids
    others_up: float

    def __add__(self, other: "Traffic") -> "Traffic":  # type: ignore[override]
        return Traffic(*(a + b for a, b in zip(self, other, strict=True)))


def message_size(message: Any) -> tuple[float, float]:
    """(floats, scalars and ids) of a message for one client, by the types of its fields."""
    floats = others = 0.0
    if not hasattr(message, "_fields"):
        raise TypeError(f"a message is a NamedTuple of Vector, Scalars and Ids, not {type(message).__name__}")
    hints = get_type_hints(type(message), include_extras=True)
    for name, value in zip(message._fields, message, strict=True):
        if value is None:
            continue
        annotated = [a for a in (hints[name], *get_args(hints[name])) if hasattr(a, "__metadata__")]
        if not annotated:
            raise TypeError(f"{type(message).__name__}.{name} has to be a Vector, Scalars or Ids: it crosses the wire")
        size = value.numel() / max(value.shape[0], 1)
        if annotated[0].__metadata__[0] == "vector":
            floats += size
        else:
            others += size
    return floats, others


def select(tree: Any, where: Any) -> Any:
    """Some clients of a tree at cohort level."""
    return tree_map(lambda v: v[where], tree)


def own(work: Any) -> Any:
    """A copy that the optimiser may write into: `start` may have handed out views of anything."""
    return tree_map(lambda v: v.clone(memory_format=torch.contiguous_format), work)


def join(pieces: list[Any]) -> Any:
    """The chunks' trees as one of the whole cohort."""
    return pieces[0] if len(pieces) == 1 else tree_map(lambda *v: torch.cat(v), *pieces)


class Round(NamedTuple):
    server: Any
    traffic: Traffic
    up: Any  # of the whole cohort, before aggregation


def run_round(
    verbs: Verbs,
    server: Any,
    clients: Clients,
    turn: Turn,
    data_of: Callable[[Tensor, int], Data],
    labels: Tensor,
    chunk: int,
) -> Round:
    """One round. Writes the rows of the cohort's clients; returns the new server."""
    down = verbs.send(server, turn)
    cuts = [slice(k, k + chunk) for k in range(0, len(turn.ids), chunk)]

    def given_for(cut: slice) -> Given:
        ids = turn.ids[cut]
        return Given(select(down, cut), clients.get(ids), select(turn, cut), labels[ids].to(turn.share.device))

    ups = []
    for cut in cuts:
        given, data = given_for(cut), data_of(turn.ids[cut], turn.round)
        work = own(verbs.start(given, data))
        up, row = verbs.finish(given, data, verbs.fit(given, data, work))
        clients.put(turn.ids[cut], row)
        ups.append(up)
        del given, work, row
    up = join(ups)
    (floats_down, others_down), (floats_up, others_up) = message_size(down), message_size(up)
    traffic = Traffic(floats_down, floats_up, others_down, others_up)

    def ask(question: Any) -> Any:
        nonlocal traffic
        replies = join(
            [verbs.answer(given_for(c), data_of(turn.ids[c], turn.round), select(question, c)) for c in cuts]
        )
        (fd, od), (fu, ou) = message_size(question), message_size(replies)
        traffic = traffic + Traffic(fd, fu, od, ou)
        return replies

    return Round(_converse(verbs.aggregate(server, up, turn), ask), traffic, up)


def _converse(result: Any, ask: Callable) -> Any:
    """Run an `aggregate` that asks back to its end; one that does not is its own result."""
    if not inspect.isgenerator(result):
        return result
    try:
        question = next(result)
        while True:
            question = result.send(ask(question))
    except StopIteration as end:
        return end.value
