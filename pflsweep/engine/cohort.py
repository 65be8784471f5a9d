"""One round of a cohort: a chunk of clients runs from send to finish before the next begins; aggregate sees all."""

import inspect
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pflsweep.data.loader import ClientData
from pflsweep.engine.clients import Clients, OptimiserStates
from pflsweep.engine.communication import Traffic, message_size
from pflsweep.engine.workers import Workers
from pflsweep.methods.protocol import Given, Spent, Turn, Verbs
from pflsweep.ops import memory
from pflsweep.ops.vmap import tree_map

DataOf = Callable[[Tensor, int], ClientData]  # the data of some clients in a round


def select(tree: Any, where: Any) -> Any:
    """Some clients of a tree at cohort level."""
    return tree_map(lambda v: v[where], tree)


def own(work: Any) -> Any:
    """A copy that the optimiser may write into: `start` may have handed out views of anything."""
    return tree_map(lambda v: v.clone(memory_format=torch.contiguous_format), work)


class Gathered:
    """The chunks' trees as one of the whole cohort, each copied into its place as it comes.

    pool: of memory in which forks may `place` their trees too; for the first ones there is room where they are `like`
    a tree.
    """

    def __init__(self, clients: int, pool: memory.Pool | None = None, like: Any = None) -> None:
        self.clients, self._pool = clients, pool
        self.tree = None if like is None else self._room(like)
        self._empty = True

    def put(self, where: slice, piece: Any) -> None:
        if where.stop - where.start == self.clients:
            self.tree = piece
            return
        if self.tree is None or (self._empty and not self._fits(piece)):
            self.tree = self._room(piece)
        tree_map(lambda whole, v: whole[where].copy_(v), self.tree, piece)
        self._empty = False

    def place(self, where: slice, piece: Any) -> bool:
        """`put` in a fork, if there is room for it; the process of which it is one has to be told, by `placed`."""
        fits = self._fits(piece)
        if fits:
            tree_map(lambda whole, v: whole[where].copy_(v), self.tree, piece)
        return fits

    def placed(self) -> None:
        self._empty = False

    def _fits(self, piece: Any) -> bool:
        return outline(self.tree) == outline(piece)

    def _room(self, piece: Any) -> Any:
        """Room for the cohort's trees like this one."""

        def of(v: Tensor) -> Tensor:
            shape = (self.clients, *v.shape[1:])
            return v.new_empty(shape) if self._pool is None else self._pool.empty(shape, v.dtype)

        return tree_map(of, piece)


def outline(tree: Any, leaf: Callable = lambda leaf: leaf) -> Any:
    """What two trees have in common that differ in clients alone. leaf: what counts of what is no tensor."""
    if isinstance(tree, Tensor):
        return tree.shape[1:], tree.dtype
    if isinstance(tree, tuple):
        return type(tree), *(outline(part, leaf) for part in tree)
    return {name: outline(part, leaf) for name, part in tree.items()} if isinstance(tree, dict) else leaf(tree)


class Round(NamedTuple):
    server: Any
    traffic: Traffic
    images: int  # samples trained on
    spent: Spent  # [M] of private training
    up: Any  # what the cohort sent


class Answer(NamedTuple):
    """What a chunk's clients leave behind beside their rows."""

    wire: tuple[int, int, int, int]  # as Traffic, all clients together
    up: Any  # a worker's: None where it has put it into its place
    images: int = 0
    spent: Spent | None = None


class Chunks:
    """How many clients run at once: `size` of them, fewer once the device had no memory for so many."""

    def __init__(self, size: int) -> None:
        self.size = size

    def over(self, count: int, one: Callable[[slice], Any]) -> Iterator[tuple[slice, Any]]:
        """What `one` makes of `count` clients, chunk by chunk. A chunk that does not fit into memory is cut in two, and
        so are all after it: `one` has written nothing yet.
        """
        start = 0
        while start < count:
            cut = slice(start, min(start + self.size, count))
            try:
                made = one(cut)
            except torch.OutOfMemoryError:
                if cut.stop - start == 1:
                    raise
                self.size = (cut.stop - start + 1) // 2
                continue
            yield cut, made
            del made  # its memory is the next one's
            start = cut.stop


class Cohort:
    """The clients of one round and what they are asked to do, chunk by chunk."""

    def __init__(
        self, verbs: Verbs, server: Any, clients: Clients, optimisers: OptimiserStates | None, turn: Turn,
        data_of: DataOf, labels: Tensor, chunks: Chunks, workers: Workers,
    ) -> None:  # fmt: skip
        self.verbs, self.server, self.clients, self.optimisers, self.turn = verbs, server, clients, optimisers, turn
        self.ids = turn.ids.cpu()  # store and data are indexed there
        self.data_of, self.labels, self.chunks = data_of, labels.to(turn.share.device), chunks
        self.workers = workers
        self.images = 0
        self._spent: dict[int, Spent] = {}  # by where a chunk begins
        self._wire = [0, 0, 0, 0]  # as Traffic, all clients together

    @property
    def traffic(self) -> Traffic:
        return Traffic(*(count / len(self.ids) for count in self._wire))

    @property
    def spent(self) -> Spent:
        """[M] What private training the clients have done."""
        return Spent(*(torch.cat(parts) for parts in zip(*(self._spent[k] for k in sorted(self._spent)), strict=True)))

    def train(self) -> Any:
        """start, fit and finish of every client; what they send, as one tree. Writes their rows."""

        def one(cut: slice) -> Answer:
            ids, given = self.ids[cut], self._given(cut)
            data = self.data_of(ids, self.turn.round)
            work = own(self.verbs.start(given, data))
            if self.optimisers is not None:
                self.optimisers.resume(ids, work)
            work = self.verbs.fit(given, data, work)
            up, row = self.verbs.finish(given, data, work)
            self.clients.put(ids, row)
            if self.optimisers is not None:
                self.optimisers.keep(ids, work)
            return Answer(_wire(given.down, up), up, data.trained, data.spent)

        return self._answers("train", one)

    def ask(self, question: Any) -> Any:
        """Every client's reply."""

        def one(cut: slice) -> Answer:
            asked, data = select(question, cut), self.data_of(self.ids[cut], self.turn.round)
            reply = self.verbs.answer(self._given(cut), data, asked)
            return Answer(_wire(asked, reply), reply, data.trained)

        return self._answers("ask", one)

    def _given(self, cut: slice) -> Given:
        turn = select(self.turn, cut)
        down, rows = self.verbs.send(self.server, turn), self.clients.get(self.ids[cut])
        return Given(down, rows, turn, self.labels[turn.ids])

    def _answers(self, kind: str, one: Callable[[slice], Answer]) -> Any:
        """What all clients send, as one tree."""
        return self._over_workers(kind, one) if self.workers.count > 1 else self._in_chunks(one)

    def _in_chunks(self, one: Callable[[slice], Answer]) -> Any:
        gathered = Gathered(len(self.ids))
        for cut, answer in self.chunks.over(len(self.ids), one):
            self._count(cut, answer)
            gathered.put(cut, answer.up)
        return gathered.tree

    def _over_workers(self, kind: str, one: Callable[[slice], Answer]) -> Any:
        """The same chunks in worker processes, whose answers lie in memory that they share with this one."""
        size = self.chunks.size
        cuts = [slice(k, min(k + size, len(self.ids))) for k in range(0, len(self.ids), size)]
        gathered = Gathered(len(self.ids), self.workers.pool, self.workers.seen.get(kind))

        def job(k: int) -> Answer:
            answer = one(cuts[k])
            return answer._replace(up=None) if gathered.place(cuts[k], answer.up) else answer

        for k, answer in self.workers.map(kind, [float(self.turn.n[cut].sum()) for cut in cuts], job):
            self._count(cuts[k], answer)
            gathered.placed() if answer.up is None else gathered.put(cuts[k], answer.up)
        self.workers.seen[kind] = tree_map(lambda v: v.new_empty((0, *v.shape[1:])), gathered.tree)
        return gathered.tree

    def _count(self, cut: slice, answer: Answer) -> None:
        self._wire = [total + count for total, count in zip(self._wire, answer.wire, strict=True)]
        self.images += answer.images
        if answer.spent is not None:
            self._spent[cut.start] = answer.spent


def _wire(down: Any, up: Any) -> tuple[int, int, int, int]:
    (down_floats, down_others), (up_floats, up_others) = message_size(down), message_size(up)
    return down_floats, up_floats, down_others, up_others


def run_round(
    verbs: Verbs, server: Any, clients: Clients, optimisers: OptimiserStates | None, turn: Turn, data_of: DataOf,
    labels: Tensor, chunks: Chunks, workers: Workers,
) -> Round:  # fmt: skip
    """One round. Writes the rows of the cohort's clients; returns the new server. optimisers: None begins each turn
    with fresh ones.
    """
    cohort = Cohort(verbs, server, clients, optimisers, turn, data_of, labels, chunks, workers)
    up = cohort.train()
    new = _converse(verbs.aggregate(server, up, turn), cohort.ask)
    return Round(new, cohort.traffic, cohort.images, cohort.spent, up)


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
