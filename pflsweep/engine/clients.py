"""State of all clients that is kept between rounds: their own states, and the states of their optimisers."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from pflsweep.ops import memory
from pflsweep.ops.vmap import leaves, tree_map
from pflsweep.util.errors import UserError

COPIED = 1 / 16  # share of the machine's memory up to which a checkpoint copies a state
MOVED = 1 << 28  # bytes that a checkpoint copies from another device at once


class Clients:
    """The states of all N clients, one row each, overwritten in place with what `finish` returns.

    A client that was never sampled is read as the common initial state. Its row is never touched and so takes no memory
    on a CPU. The rows are shared with forks of this process.
    """

    def __init__(self, initial: Any, clients: int) -> None:
        self._initial, self._constants = initial, constants(initial)
        self._rows = tree_map(lambda v: memory.zeros((clients, *v.shape), v.dtype, v.device), initial)
        self.seen = memory.zeros((clients,), torch.bool, torch.device("cpu"))

    def get(self, ids: Tensor) -> Any:
        """Return a copy of the states of some clients: [C, ...] each."""
        seen = self.seen[ids]

        def read(rows: Tensor, initial: Tensor) -> Tensor:
            if seen.all():
                return rows[ids.to(rows.device)]
            out, here = rows.new_empty((len(ids), *initial.shape)), seen.to(rows.device)
            out[~here] = initial
            # Only rows that were written are read: reading the others would make the system allocate their pages.
            out[here] = rows[ids[seen].to(rows.device)]
            return out

        return tree_map(read, self._rows, self._initial)

    def misfit(self, count: int, rows: Any) -> str:
        """Return why new states of `count` clients cannot be put in; "" if they can.

        A part that is not a tensor, which all clients share, must not change, and tensors must have the shape and type
        of those of `init_client`.
        """
        if (found := constants(rows)) != self._constants:
            return f"with {found} where `init_client` has {self._constants}: what changes in it has to be a tensor"
        new_parts, parts = leaves(rows), leaves(self._rows)
        if len(new_parts) != len(parts):
            return f"with {len(new_parts)} tensors where `init_client` has {len(parts)}"
        for store, new in zip(parts, new_parts, strict=True):
            must = (count, *store.shape[1:])
            if (new.dtype, new.shape) != (store.dtype, must):
                return (
                    f"of {_described(new, new.shape)}; by `init_client` it has to be {_described(store, must)}: make "
                    "tensors by w.new_zeros(...), which has the model's type and device"
                )
        return ""

    def put(self, ids: Tensor, rows: Any) -> None:
        """Overwrite the states of some clients. rows: [C, ...] each, without a `misfit`."""
        tree_map(lambda store, new: store.index_copy_(0, ids.to(store.device), new), self._rows, rows)
        self.seen[ids] = True

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint stores: the rows of clients that have one, as a list of blocks for each tensor.

        It has to be written before the next round, since large states are views of the rows, not copies.
        """
        ids = self.seen.nonzero().flatten()
        return {"ids": ids, "rows": [_blocks(rows, ids) for rows in leaves(self._rows)] if len(ids) else []}

    def load(self, state: dict[str, Any]) -> None:
        """Restore what `state` returned. It is copied block by block, since the blocks may be mapped from a file."""
        ids = state["ids"]
        self.seen[:] = False
        for store, blocks in zip(leaves(self._rows) if len(ids) else [], state["rows"], strict=True):
            for where, block in zip(ids.split([len(block) for block in blocks]), blocks, strict=True):
                store.index_copy_(0, where.to(store.device), block.to(store.device))
        self.seen[ids] = True


def _described(tensor: Tensor, shape: Sequence[int]) -> str:
    return f"{list(shape)} of {str(tensor.dtype).removeprefix('torch.')}"


def constants(tree: Any) -> list[Any]:
    """Return the leaves of a state that are no tensors. Raises TypeError on a list, whose tensors would be lost."""
    if isinstance(tree, Tensor):
        return []
    if isinstance(tree, list):
        raise TypeError("a state has a list, whose tensors would not be kept: use a tuple")
    if isinstance(tree, tuple | dict):
        return [leaf for part in (tree.values() if isinstance(tree, dict) else tree) for leaf in constants(part)]
    return [tree]


def _blocks(rows: Tensor, ids: Tensor) -> list[Tensor]:
    """Return some rows, in order, on the CPU, as a list of blocks.

    It is one copy, or where that would take too much memory, views of runs of consecutive rows. Each view has a storage
    of its own, since torch.save writes whole storages.
    """
    if rows.device.type != "cpu":
        return [rows[some.to(rows.device)].cpu() for some in ids.split(MOVED // max(rows[0].nbytes, 1) or 1)]
    if rows[0].nbytes * len(ids) < memory.total(rows.device) * COPIED:
        return [rows[ids]]
    runs = ids.tensor_split((ids.diff() != 1).nonzero().flatten() + 1)
    return [torch.from_numpy(rows[int(run[0]) : int(run[-1]) + 1].numpy()) for run in runs]


class OptimiserStates:
    """The optimiser states of all N clients at the end of their last turns: the fields `opt` and `..._opt` of Work.

    A client without a turn has fresh states, which are zeros.
    """

    def __init__(self, clients: int) -> None:
        self._clients = clients
        self._store = self._sized([])  # replaced at the first `resume`, which shows the shapes of the states

    def get(self, ids: Tensor) -> tuple[Tensor, ...]:
        """Return a copy of the states of some clients: [C, ...] each; an empty tuple before the first round."""
        return self._store.get(ids)

    def resume(self, ids: Tensor, work: Any) -> None:
        """Copy the clients' states into the work that `start` returned, which the engine owns.

        Raises UserError if the work has no field for them.
        """
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
        """Store the states of clients whose work has been trained."""
        self._store.put(ids, tuple(optimiser_states(work)))

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint stores."""
        return self._store.state()

    def load(self, state: dict[str, Any], device: torch.device) -> None:
        """Restore what `state` returned, on a device."""
        self._store = self._sized([blocks[0].to(device) for blocks in state["rows"]])
        self._store.load(state)

    def _sized(self, like: list[Tensor]) -> Clients:
        """Return an empty store for states of these shapes and types. like: those of some clients, [C, ...] each."""
        return Clients(tuple(state.new_zeros(state.shape[1:]) for state in like), self._clients)


def optimiser_states(work: Any) -> list[Tensor]:
    """Return the tensors in the fields `opt` and `..._opt` of a work and of works inside it (ALA's), in order."""
    found: list[Tensor] = []
    for name in getattr(work, "_fields", ()):
        part = getattr(work, name)
        found += leaves(part) if name == "opt" or name.endswith("_opt") else optimiser_states(part)
    return found
