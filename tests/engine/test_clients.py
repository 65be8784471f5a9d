"""Clients' rows and optimiser states are kept as they were put."""

from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from pflsweep.engine import clients as engine_clients
from pflsweep.engine.clients import Clients, OptimiserStates, optimiser_states
from pflsweep.ops.vmap import leaves
from pflsweep.records import checkpoint
from pflsweep.util.errors import UserError


class Row(NamedTuple):
    w: Tensor  # [2]
    number: Tensor  # []
    nothing: None


def store() -> Clients:
    return Clients(Row(torch.tensor([1.0, 2.0]), torch.tensor(7), None), 5)


def rows(*values: float) -> Row:
    w = torch.tensor([float(v) for v in values])[:, None].expand(-1, 2)
    return Row(w, torch.tensor([int(v) for v in values]), None)


def test_clients_that_were_never_sampled_have_the_initial_row() -> None:
    got = store().get(torch.tensor([4, 0]))
    assert got.w.tolist() == [[1, 2], [1, 2]]
    assert got.number.tolist() == [7, 7]
    assert got.nothing is None


def test_rows_come_back_as_they_were_put() -> None:
    clients = store()
    clients.put(torch.tensor([3, 1]), rows(30, 10))
    got = clients.get(torch.tensor([0, 1, 2, 3]))
    assert got.number.tolist() == [7, 10, 7, 30]
    assert got.w.tolist() == [[1, 2], [10, 10], [1, 2], [30, 30]]
    clients.put(torch.tensor([1]), rows(11))
    assert clients.get(torch.tensor([3, 1])).number.tolist() == [30, 11]


def test_what_is_no_tensor_may_not_change() -> None:
    clients = Clients({"w": torch.zeros(2), "turns": 0}, 5)
    ids, w = torch.tensor([3]), torch.ones(1, 2)
    clients.put(ids, {"w": w, "turns": 0})
    assert clients.misfit(1, {"w": 2 * w, "turns": 0}) == ""
    assert clients.misfit(1, {"w": w, "turns": 1}).startswith("with [1] where `init_client` has [0]: what changes")
    assert clients.misfit(1, {"turns": 0}) == "with 0 tensors where `init_client` has 1"
    with pytest.raises(TypeError, match="has a list, whose tensors would not be kept: use a tuple"):
        Clients(([torch.zeros(2)],), 5)


def test_rows_are_copies() -> None:
    clients = store()
    clients.put(torch.tensor([1]), rows(10))
    for ids in ([1], [0, 1], [0]):
        for leaf in leaves(clients.get(torch.tensor(ids))):
            leaf.fill_(99)
    assert clients.get(torch.tensor([0, 1])).number.tolist() == [7, 10]
    assert clients.get(torch.tensor([0])).w.tolist() == [[1, 2]]


@pytest.mark.parametrize("copied", [engine_clients.COPIED, 0.0])
def test_a_stores_state_is_its_seen_rows(copied: float, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Rows are written and read as one copy or as views of neighbours."""
    monkeypatch.setattr(engine_clients, "COPIED", copied)
    clients = store()
    assert clients.state()["rows"] == []
    clients.put(torch.tensor([3, 1, 2, 0]), rows(30, 10, 20, 0))
    clients.seen[2] = False
    state = clients.state()
    assert state["ids"].tolist() == [0, 1, 3]
    assert [[len(block) for block in blocks] for blocks in state["rows"]] == [[3] if copied else [2, 1]] * 2
    viewed = [block.data_ptr() for block in state["rows"][0]] == [clients._rows.w[i].data_ptr() for i in (0, 3)]
    assert viewed != bool(copied)
    assert state["rows"][0][0].untyped_storage().nbytes() == (24 if copied else 16)
    checkpoint.write_torch(tmp_path / "state.pt", state)
    other = store()
    other.load(checkpoint.read_torch(tmp_path / "state.pt"))
    everybody = torch.arange(5)
    for a, b in zip(leaves(other.get(everybody)), leaves(clients.get(everybody)), strict=True):
        assert torch.equal(a, b)
    assert torch.equal(other.seen, clients.seen)


def test_loading_forgets_what_was_there() -> None:
    clients = store()
    clients.put(torch.tensor([2]), rows(20))
    clients.load(store().state())
    assert not clients.seen.any()
    assert clients.get(torch.tensor([2])).number.tolist() == [7]


class Inner(NamedTuple):
    w: Tensor
    opt: Tensor
    head_opt: Any
    optional: Tensor  # not an optimiser's state


class Outer(NamedTuple):
    mix: Tensor
    inner: Inner


def nested(*values: float) -> Outer:
    """Return a method's work within a plug-in's, one value per client: states of one number and of two."""
    one = torch.tensor(values, dtype=torch.float32)[:, None]
    w, two = torch.zeros(len(values), 4), 10 * one.expand(-1, 2)
    return Outer(w, Inner(w.clone(), one, (one.clone(), two.clone()), torch.ones(len(values))))


def test_optimiser_states_are_found_by_name_wherever_they_stand() -> None:
    assert [state.tolist() for state in optimiser_states(nested(3))] == [[[3]], [[3]], [[30, 30]]]
    assert optimiser_states(nested(3).mix) == []


def resumed(kept: OptimiserStates, *ids: int) -> list[float]:
    """Return a state with which these clients begin; the other one is ten times as large."""
    work = nested(*[0.0] * len(ids))
    kept.resume(torch.tensor(ids), work)
    assert torch.equal(work.inner.head_opt[1], 10 * work.inner.opt.expand(-1, 2))
    assert not work.mix.any()
    assert not work.inner.w.any()
    assert work.inner.optional.all()
    return work.inner.opt[:, 0].tolist()


def test_a_turn_begins_with_the_optimiser_states_of_the_last_one() -> None:
    kept = OptimiserStates(5)
    assert resumed(kept, 3, 1) == [0, 0], "fresh"
    assert resumed(kept, 2) == [0], "a chunk that is tried again has left nothing"
    kept.keep(torch.tensor([3, 1]), nested(30, 10))
    assert resumed(kept, 0, 1, 2, 3) == [0, 10, 0, 30]
    kept.keep(torch.tensor([1]), nested(11))
    assert resumed(kept, 1, 3) == [11, 30]


def test_optimiser_states_are_saved_of_clients_that_have_some() -> None:
    kept, other = OptimiserStates(10_000), OptimiserStates(10_000)
    other.load(kept.state(), torch.device("cpu"))
    assert resumed(other, 7) == [0], "before the first round there is nothing"
    resumed(kept, 7, 9)
    kept.keep(torch.tensor([7, 9]), nested(70, 90))
    assert [[len(block) for block in rows] for rows in kept.state()["rows"]] == [[2]] * 3
    other.load(kept.state(), torch.device("cpu"))
    kept.keep(torch.tensor([7]), nested(71))
    assert resumed(other, 8, 9, 7) == [0, 90, 70]


def test_a_work_without_optimiser_states_has_none_to_keep() -> None:
    with pytest.raises(UserError, match=r"'kept', but Row, .* `opt` or \.\.\._opt.* train.optimiser_state=fresh"):
        OptimiserStates(5).resume(torch.tensor([0]), rows(1))
