"""`per_client`: one client alone and several under vmap give the same numbers, whatever trees they have."""

import threading
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from pflsweep.ops.vmap import leaves, per_client, select, tree_map, vmapped


class Inner(NamedTuple):
    a: Tensor
    nothing: None
    number: float


class Outer(NamedTuple):
    inner: Inner
    b: Tensor
    pair: tuple[Tensor, int]
    named: dict[str, Tensor]


def outer(clients: int) -> Outer:
    draw = torch.Generator().manual_seed(0)
    a, b, c, d = (torch.randn(clients, 3, generator=draw, dtype=torch.float64) for _ in range(4))
    return Outer(Inner(a, None, 2.5), b, (c, 7), {"d": d})


class Thing:
    factor = 3.0

    @per_client
    def twist(self, tree: Outer, scale: float) -> Outer:
        """Scale each client's tensors by the client's own sum."""
        total = tree.inner.a.sum() * self.factor * scale
        inner = tree.inner._replace(a=tree.inner.a * total)
        return Outer(inner, tree.b + tree.pair[0], (tree.b.mean(), tree.pair[1]), {"d": tree.named["d"]})

    @per_client
    def nested(self, tree: Outer) -> Outer:
        return self.twist(tree, 1.0)

    @per_client
    def fails(self, x: Tensor) -> Tensor:
        raise ValueError("on purpose")

    @per_client
    def asks(self, x: Tensor) -> Tensor:
        return torch.full_like(x, float(vmapped()))


def test_tree_map_keeps_types_and_everything_that_is_no_tensor() -> None:
    tree = outer(2)
    double = tree_map(lambda x: 2 * x, tree)
    assert isinstance(double, Outer)
    assert isinstance(double.inner, Inner)
    assert double.inner.nothing is None
    assert (double.inner.number, double.pair[1]) == (2.5, 7)
    assert torch.equal(double.named["d"], 2 * tree.named["d"])


def test_tree_map_of_several_trees_goes_leaf_by_leaf() -> None:
    tree = outer(2)
    total = tree_map(torch.add, tree, tree)
    assert all(torch.equal(a, 2 * b) for a, b in zip(leaves(total), leaves(tree), strict=True))
    with pytest.raises(ValueError, match="shorter"):
        tree_map(torch.add, (tree.b, tree.b), (tree.b,))


def test_leaves_rebuild_a_tree() -> None:
    tree = outer(2)
    supply = iter([leaf + 1 for leaf in leaves(tree)])
    rebuilt = tree_map(lambda _: next(supply), tree)
    assert torch.equal(rebuilt.inner.a, tree.inner.a + 1)
    assert torch.equal(rebuilt.named["d"], tree.named["d"] + 1)


@pytest.mark.parametrize("clients", [2, 5])
def test_several_clients_at_once_are_several_clients_in_turn(clients: int) -> None:
    tree, thing = outer(clients), Thing()
    together = thing.twist(tree, 0.5)
    assert together.inner.nothing is None
    assert together.pair[1] == 7
    for i in range(clients):
        alone = thing.twist(tree_map(lambda v, i=i: v[i : i + 1], tree), 0.5)
        for a, b in zip(leaves(alone), leaves(together), strict=True):
            assert a.shape[0] == 1
            torch.testing.assert_close(a[0], b[i], rtol=1e-14, atol=0)


def test_only_several_clients_run_under_vmap() -> None:
    assert Thing().asks(torch.zeros(1, 2)).tolist() == [[0.0, 0.0]]
    assert Thing().asks(torch.zeros(2, 1)).tolist() == [[1.0], [1.0]]
    assert not vmapped()


@pytest.mark.parametrize("clients", [1, 3])
def test_a_lifted_method_inside_a_lifted_method_is_refused(clients: int) -> None:
    with pytest.raises(RuntimeError, match="twist is lifted with @per_client"):
        Thing().nested(outer(clients))


def test_a_named_argument_of_a_lifted_method_is_refused() -> None:
    with pytest.raises(TypeError, match="twist is lifted with @per_client, and takes its arguments by position"):
        Thing().twist(outer(3), scale=1.0)


@pytest.mark.parametrize("clients", [1, 3])
def test_after_an_error_lifting_works_again(clients: int) -> None:
    with pytest.raises(ValueError, match="on purpose"):
        Thing().fails(torch.zeros(clients, 2))
    assert Thing().twist(outer(clients), 1.0).b.shape == (clients, 3)


def test_threads_do_not_see_each_other() -> None:
    found: dict[str, Any] = {}

    class Other:
        @per_client
        def outside(self, x: Tensor) -> Tensor:
            thread = threading.Thread(target=lambda: found.update(y=Thing().asks(torch.zeros(1, 2))))
            thread.start()
            thread.join()
            return x

    Other().outside(torch.zeros(2, 2))
    assert found["y"].tolist() == [[0.0, 0.0]]


def test_some_clients_of_an_expanded_tensor_take_no_memory() -> None:
    model, where = torch.arange(3.0), torch.tensor([3, 1])
    shared, apart = select((model.expand(4, 3), torch.arange(8.0).view(4, 2)), where)
    assert torch.equal(shared, model.expand(2, 3))
    assert shared.data_ptr() == model.data_ptr()
    assert apart.tolist() == [[6.0, 7.0], [2.0, 3.0]]
