"""One round of a cohort. Clients run in chunks, each from `send` to `finish`; `aggregate` then sees all of them."""

import inspect
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from pflsweep.data.loader import ClientData
from pflsweep.engine.clients import Clients, OptimiserStates
from pflsweep.engine.communication import Traffic, message_size
from pflsweep.engine.returned import require_pair, require_rows, require_state
from pflsweep.engine.workers import Workers
from pflsweep.methods.protocol import Given, Spent, Turn, Verbs
from pflsweep.ops import memory
from pflsweep.ops.random import GENERATORS, without_global_draws
from pflsweep.ops.vmap import own_copy, select, tree_map

T = TypeVar("T")
DataOf = Callable[[Tensor, int], ClientData]  # (client ids, round) -> their data


class Gathered:
    """Joins the trees of chunks into one of the whole cohort, copying each into its place as it arrives.

    pool: memory shared with forks, which can then copy their trees in themselves. like: a tree of the shapes that are
    expected, for which memory is allocated before the first tree arrives.
    """

    def __init__(self, clients: int, pool: memory.Pool | None = None, like: Any = None) -> None:
        self.clients, self._pool = clients, pool
        self.tree = None if like is None else self._room(like)
        self._empty = True

    def copy_in(self, where: slice, piece: Any) -> None:
        """Copy the tree of a chunk into its place. A chunk that is the whole cohort is taken without a copy."""
        if where.stop - where.start == self.clients:
            self.tree = piece
            return
        if self.tree is None or (self._empty and not self._fits(piece)):
            self.tree = self._room(piece)
        tree_map(lambda whole, v: whole[where].copy_(v), self.tree, piece)
        self._empty = False

    def copy_in_from_fork(self, where: slice, piece: Any) -> bool:
        """In a fork: copy the tree of a chunk into its place and return True, or return False if it does not fit.

        The parent process cannot see this and has to call `note_fork_copied`.
        """
        fits = self._fits(piece)
        if fits:
            tree_map(lambda whole, v: whole[where].copy_(v), self.tree, piece)
        return fits

    def note_fork_copied(self) -> None:
        """Note that a fork has copied a tree in."""
        self._empty = False

    def _fits(self, piece: Any) -> bool:
        return outline(self.tree) == outline(piece)

    def _room(self, piece: Any) -> Any:
        """Return an empty tree for the whole cohort, of the shapes and types of this chunk's."""

        def room(v: Tensor) -> Tensor:
            shape = (self.clients, *v.shape[1:])
            return v.new_empty(shape) if self._pool is None else self._pool.empty(shape, v.dtype)

        return tree_map(room, piece)


def outline(tree: Any, leaf: Callable = lambda leaf: leaf) -> Any:
    """Return a tree's structure without its clients: types, and shapes of tensors but for the first axis.

    Trees of equal outlines can be joined. leaf: maps a leaf that is not a tensor to what has to be equal.
    """
    if isinstance(tree, Tensor):
        return tree.shape[1:], tree.dtype
    if isinstance(tree, tuple):
        return type(tree), *(outline(part, leaf) for part in tree)
    return {name: outline(part, leaf) for name, part in tree.items()} if isinstance(tree, dict) else leaf(tree)


class CohortResult(NamedTuple):
    """The result of a round before any evaluation: the server's new state, and what the cohort sent."""

    server: Any  # the new state of the server
    traffic: Traffic
    images: int  # samples trained on
    spent: Spent  # [M] private training of the cohort
    up: Any  # what the cohort sent


class ChunkResult(NamedTuple):
    """The result of a chunk: what its clients return to the cohort. The chunk itself writes their states."""

    traffic: tuple[int, int, int, int]  # as in Traffic, summed over the clients
    up: Any  # what they send; None if a worker process has placed it in shared memory
    images: int = 0
    spent: Spent | None = None


class ChunkSize:
    """The number of clients that run at once, `size`. It is halved when the device has no memory for so many."""

    def __init__(self, size: int) -> None:
        self.size = size

    def over(self, count: int, one: Callable[[slice], Any]) -> Iterator[tuple[slice, Any]]:
        """Yield (chunk, one(chunk)) for the chunks of `count` clients.

        A chunk that does not fit into memory is cut in two, and so are all after it. It can be repeated, since a chunk
        writes nothing before its last step.
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
            del made  # frees its memory before the next chunk
            start = cut.stop


class Cohort:
    """The clients of one round. `train` runs their turns and `ask` their answers, chunk by chunk."""

    def __init__(
        self, verbs: Verbs, server: Any, clients: Clients, optimisers: OptimiserStates | None, turn: Turn,
        data_of: DataOf, class_counts: Tensor, chunks: ChunkSize, workers: Workers,
    ) -> None:  # fmt: skip
        self.verbs, self.server, self.clients, self.optimisers, self.turn = verbs, server, clients, optimisers, turn
        self.ids = turn.ids.cpu()  # on the CPU, where the clients' states and data are indexed
        self.data_of, self.class_counts, self.chunks = data_of, class_counts.to(turn.share.device), chunks
        self.workers = workers
        self.images = 0
        self._spent: dict[int, Spent] = {}  # by the first position of a chunk
        self._traffic = [0, 0, 0, 0]  # as in Traffic, summed over the clients

    @property
    def traffic(self) -> Traffic:
        """Return what was sent and received so far, for one client on average."""
        return Traffic(*(count / len(self.ids) for count in self._traffic))

    @property
    def spent(self) -> Spent:
        """Return the clients' private training, [M]."""
        return Spent(*(torch.cat(parts) for parts in zip(*(self._spent[k] for k in sorted(self._spent)), strict=True)))

    def train(self) -> Any:
        """Run start, fit and finish of every client and write their states. Return what they send, as one tree."""

        def one(cut: slice) -> ChunkResult:
            turns = partial(self._turns, cut)
            result, row, work = self._watched(turns, "while a client trains")
            require_state(self.verbs, self.clients.misfit(len(self.ids[cut]), row))
            self.clients.put(self.ids[cut], row)
            if self.optimisers is not None:
                self.optimisers.keep(self.ids[cut], work)
            return result

        return self._gather("train", one)

    def _turns(self, cut: slice) -> tuple[ChunkResult, Any, Any]:
        """Return the result, the new states and the trained work of a chunk. Nothing is written, so that it can be
        repeated.
        """
        ids, given = self.ids[cut], self._given(cut)
        data = self.data_of(ids, self.turn.round)
        # The optimiser writes into it, and what `start` returns may be views of any state
        work = own_copy(require_rows(self.verbs, "start", self.verbs.start(given, data), len(ids)))
        if self.optimisers is not None:
            self.optimisers.resume(ids, work)
        work = require_rows(self.verbs, "fit", self.verbs.fit(given, data, work), len(ids))
        up, row = require_pair(self.verbs, self.verbs.finish(given, data, work))
        traffic = _traffic(given.down, require_rows(self.verbs, "finish", up, len(ids)))
        return ChunkResult(traffic, up, data.trained, data.spent), row, work

    def aggregate(self, up: Any) -> Any:
        """Return the new state of the server, which may ask the clients on the way. up: what they sent."""
        counted = self.images, self._traffic

        def new() -> Any:
            self.images, self._traffic = counted  # it may be called twice
            return _converse(self.verbs.aggregate(self.server, up, self.turn), self.ask)

        return self._watched(new, "in `aggregate`", ("PyTorch", "NumPy"))

    def ask(self, question: Any) -> Any:
        """Return every client's reply to a question, as one tree."""
        require_rows(self.verbs, "aggregate", question, len(self.ids), "asked")

        def one(cut: slice) -> ChunkResult:
            return self._watched(partial(self._answers, cut, select(question, cut)), "in `answer`")

        # A method may ask several questions a round, of which each takes its own time
        return self._gather(f"ask {type(question).__name__}", one)

    def _answers(self, cut: slice, asked: Any) -> ChunkResult:
        """Return a chunk's replies to a question, which is its own part of it."""
        data = self.data_of(self.ids[cut], self.turn.round)
        answers = self.verbs.answer(self._given(cut), data, asked)
        reply = require_rows(self.verbs, "answer", answers, len(self.ids[cut]))
        return ChunkResult(_traffic(asked, reply), reply, data.trained)

    def _watched(self, do: Callable[[], T], when: str, later: Sequence[str] = ("PyTorch",)) -> T:
        """Return do(). Raises UserError if it draws from a global generator.

        later: those that are looked at after the first round. NumPy's takes too long to look at for each chunk, and
        Python's is also used by threads of libraries.
        """
        return without_global_draws(do, self.verbs.who, when, GENERATORS if self.turn.round == 1 else later)

    def _given(self, cut: slice) -> Given:
        turn = select(self.turn, cut)
        down = require_rows(self.verbs, "send", self.verbs.send(self.server, turn), len(turn.ids))
        rows = self.clients.get(self.ids[cut])
        return Given(down, rows, turn, self.class_counts[turn.ids])

    def _gather(self, kind: str, one: Callable[[slice], ChunkResult]) -> Any:
        """Return what all clients send, as one tree. kind: the name of this work for Workers.map."""
        return self._over_workers(kind, one) if self.workers.count > 1 else self._in_chunks(one)

    def _in_chunks(self, one: Callable[[slice], ChunkResult]) -> Any:
        gathered = Gathered(len(self.ids))
        for cut, result in self.chunks.over(len(self.ids), one):
            self._count(cut, result)
            gathered.copy_in(cut, result.up)
        return gathered.tree

    def _over_workers(self, kind: str, one: Callable[[slice], ChunkResult]) -> Any:
        """Run the chunks in worker processes, which put what clients send into memory that they share with this one."""
        size = self.chunks.size
        cuts = [slice(k, min(k + size, len(self.ids))) for k in range(0, len(self.ids), size)]
        gathered = Gathered(len(self.ids), self.workers.pool, self.workers.seen.get(kind))

        def job(k: int) -> ChunkResult:
            result = one(cuts[k])
            return result._replace(up=None) if gathered.copy_in_from_fork(cuts[k], result.up) else result

        for k, result in self.workers.map(kind, [float(self.turn.n[cut].sum()) for cut in cuts], job):
            self._count(cuts[k], result)
            gathered.note_fork_copied() if result.up is None else gathered.copy_in(cuts[k], result.up)
        self.workers.seen[kind] = tree_map(lambda v: v.new_empty((0, *v.shape[1:])), gathered.tree)
        return gathered.tree

    def _count(self, cut: slice, result: ChunkResult) -> None:
        self._traffic = [total + count for total, count in zip(self._traffic, result.traffic, strict=True)]
        self.images += result.images
        if result.spent is not None:
            self._spent[cut.start] = result.spent


def _traffic(down: Any, up: Any) -> tuple[int, int, int, int]:
    """Return the sizes of two messages in the order of Traffic, summed over the clients."""
    (down_floats, down_others), (up_floats, up_others) = message_size(down), message_size(up)
    return down_floats, up_floats, down_others, up_others


def run_round(
    verbs: Verbs, server: Any, clients: Clients, optimisers: OptimiserStates | None, turn: Turn, data_of: DataOf,
    class_counts: Tensor, chunks: ChunkSize, workers: Workers,
) -> CohortResult:  # fmt: skip
    """Run one round and write the states of the cohort's clients.

    optimisers: the states of the clients' optimisers; None: each turn begins with fresh ones. class_counts: [N, K].
    """
    cohort = Cohort(verbs, server, clients, optimisers, turn, data_of, class_counts, chunks, workers)
    up = cohort.train()
    return CohortResult(cohort.aggregate(up), cohort.traffic, cohort.images, cohort.spent, up)


def _converse(result: Any, ask: Callable) -> Any:
    """Return the new server state from the result of `aggregate`, putting its questions to the clients if it asks."""
    if not inspect.isgenerator(result):
        return result
    try:
        question = next(result)
        while True:
            question = result.send(ask(question))
    except StopIteration as end:
        return end.value
