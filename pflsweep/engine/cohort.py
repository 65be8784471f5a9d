"""One round of a cohort: a chunk of clients runs from send to finish before the next begins; aggregate sees all."""

import inspect
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, NamedTuple, get_args, get_type_hints

import torch
from torch import Tensor

from pflsweep.data.handle import Data
from pflsweep.engine import memory
from pflsweep.engine.lift import leaves, tree_map
from pflsweep.engine.parallel import Workers
from pflsweep.engine.protocol import Given, Spent, Turn, Verbs
from pflsweep.errors import UserError

COPIED = 1 / 16  # of the machine's memory: what a checkpoint may copy of one state
MOVED = 1 << 28  # bytes that it takes from another device at once
DataOf = Callable[[Tensor, int], Data]  # the data of some clients in a round


class Clients:
    """The state of all N clients, one row each: the store that `finish` writes to in place.

    A client that was never sampled has no row of its own, which takes no memory on a CPU; it is read as the common
    initial state. Forks of this process write to the same rows.
    """

    def __init__(self, initial: Any, clients: int) -> None:
        self._initial = initial
        self._rows = tree_map(lambda v: memory.zeros((clients, *v.shape), v.dtype, v.device), initial)
        self.seen = memory.zeros((clients,), torch.bool, torch.device("cpu"))

    def get(self, ids: Tensor) -> Any:
        """The rows of some clients, copied: [C, ...] each."""
        seen = self.seen[ids]

        def read(rows: Tensor, initial: Tensor) -> Tensor:
            if seen.all():
                return rows[ids.to(rows.device)]
            out, here = rows.new_empty((len(ids), *initial.shape)), seen.to(rows.device)
            out[~here] = initial
            out[here] = rows[ids[seen].to(rows.device)]  # to read the others would take their memory
            return out

        return tree_map(read, self._rows, self._initial)

    def put(self, ids: Tensor, rows: Any) -> None:
        """Write the rows of some clients."""
        tree_map(lambda store, new: store.index_copy_(0, ids.to(store.device), new), self._rows, rows)
        self.seen[ids] = True

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps: the rows of clients that have one, a list of blocks for each tensor of a row.

        To be written before the next round: what would take much memory is not copied.
        """
        ids = self.seen.nonzero().flatten()
        return {"ids": ids, "rows": [_blocks(rows, ids) for rows in leaves(self._rows)] if len(ids) else []}

    def load(self, state: dict[str, Any]) -> None:
        """Block by block, which may lie in a file."""
        ids = state["ids"]
        self.seen[:] = False
        for store, blocks in zip(leaves(self._rows) if len(ids) else [], state["rows"], strict=True):
            blocks = [blocks] if isinstance(blocks, Tensor) else blocks  # as older checkpoints have them
            for where, block in zip(ids.split([len(block) for block in blocks]), blocks, strict=True):
                store.index_copy_(0, where.to(store.device), block.to(store.device))
        self.seen[ids] = True


def _blocks(rows: Tensor, ids: Tensor) -> list[Tensor]:
    """Some rows, in order, on the CPU: one copy, or where that would take a good part of its memory, views of those
    that are neighbours, each with a storage of its own, since torch.save writes whole storages.
    """
    if rows.device.type != "cpu":
        return [rows[some.to(rows.device)].cpu() for some in ids.split(MOVED // max(rows[0].nbytes, 1) or 1)]
    if rows[0].nbytes * len(ids) < memory.total(rows.device) * COPIED:
        return [rows[ids]]
    runs = ids.tensor_split((ids.diff() != 1).nonzero().flatten() + 1)
    return [torch.from_numpy(rows[int(run[0]) : int(run[-1]) + 1].numpy()) for run in runs]


class OptimiserStates:
    """The optimiser states of all N clients as their last turns left them: the fields `opt` and `..._opt` of their
    work. A client without a turn has fresh ones, of zeros.
    """

    def __init__(self, clients: int) -> None:
        self._clients = clients
        self._store = self._sized([])  # as large as it has to be from the first work on

    def get(self, ids: Tensor) -> tuple[Tensor, ...]:
        """The states of some clients, copied; none before the first round."""
        return self._store.get(ids)

    def resume(self, ids: Tensor, work: Any) -> None:
        """Write them into the work that `start` returned, which the engine owns. Raises UserError where none fits."""
        fresh = optimiser_states(work)
        if not fresh:
            raise UserError(
                f"train.optimiser_state is 'kept', but {type(work).__name__}, the work that this method's `start` "
                "returns, has no field named `opt` or ..._opt: there is no state to keep. Give the one that "
                "`self.opt.init` makes such a name, or use train.optimiser_state=fresh."
            )
        if not self._store.seen.any():
            self._store = self._sized(fresh)
        for state, last in zip(fresh, self._store.get(ids), strict=True):
            state.copy_(last)

    def keep(self, ids: Tensor, work: Any) -> None:
        """Remember those of a work that has been trained."""
        self._store.put(ids, tuple(optimiser_states(work)))

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        return self._store.state()

    def load(self, state: dict[str, Any], device: torch.device) -> None:
        self._store = self._sized([blocks[0].to(device) for blocks in state["rows"]])
        self._store.load(state)

    def _sized(self, like: list[Tensor]) -> Clients:
        """An empty store for states such as these of some clients, [C, ...] each."""
        return Clients(tuple(state.new_zeros(state.shape[1:]) for state in like), self._clients)


def optimiser_states(work: Any) -> list[Tensor]:
    """What stands in fields named `opt` or ..._opt of a work, and of works inside it (ALA's), in their order."""
    found: list[Tensor] = []
    for name in getattr(work, "_fields", ()):
        part = getattr(work, name)
        found += leaves(part) if name == "opt" or name.endswith("_opt") else optimiser_states(part)
    return found


class Traffic(NamedTuple):
    """What crossed the wire in a round, for one client of the cohort on average."""

    floats_down: float  # multiples of model parts
    floats_up: float
    others_down: float  # scalars and ids
    others_up: float


def message_size(message: Any) -> tuple[int, int]:
    """(floats, scalars and ids) of a message, all its clients together, by the types of its fields.

    Raises TypeError where a field is none of Vector, Scalars, Ids and Kept.
    """
    floats = others = 0
    for value, kind in zip(message, _kinds(message.__class__), strict=True):
        if value is None or kind == "kept":
            continue
        if kind == "vector":
            floats += value.numel()
        else:
            others += value.numel()
    return floats, others


@cache
def _kinds(message: Any) -> list[str]:
    """What each field of a message is: vector, scalars or ids."""
    if not hasattr(message, "_fields"):
        raise TypeError(f"a message is a NamedTuple of Vector, Scalars and Ids, not {message.__name__}")
    kinds = []
    for name, hint in get_type_hints(message, include_extras=True).items():
        annotated = [a for a in (hint, *get_args(hint)) if hasattr(a, "__metadata__")]
        if not annotated:
            raise TypeError(f"{message.__name__}.{name} has to be a Vector, Scalars or Ids: it crosses the wire")
        kinds.append(annotated[0].__metadata__[0])
    return kinds


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
            return Answer(_wire(asked, reply), reply)

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
