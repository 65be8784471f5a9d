"""Functions that a GPU replays as CUDA graphs, on the fake device and, where there is one, on a GPU."""

import logging
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from pflsweep.conformance.fake_device import another_device
from pflsweep.ops import graph
from pflsweep.ops.graph import WARM, Repeated
from pflsweep.util.once import warn_once


class State(NamedTuple):
    a: Tensor
    b: Tensor


@pytest.fixture(params=["fake", pytest.param("cuda", marks=pytest.mark.skipif(
    not torch.cuda.is_available(), reason="no GPU"))])  # fmt: skip
def device(request: pytest.FixtureRequest) -> Iterator[str]:
    if request.param == "cuda":
        yield "cuda"
        return
    with another_device() as name:
        yield name


def after(fn: Callable, values: list[Any], state: State, device: str) -> State:
    """Return the state after all values, on the CPU."""
    repeated = Repeated(fn, torch.device(device))
    for value in values:
        state = repeated(state, value)
    return State(*(leaf.cpu() for leaf in state))


def numbers(device: str, *sizes: int) -> list[Tensor]:
    return [torch.arange(1.0, size + 1).mul(0.1 + k).to(device) for k, size in enumerate(sizes)]


def start(device: str) -> State:
    return State(torch.ones(3, device=device), torch.zeros(3, device=device))


@pytest.mark.parametrize("sizes", [[3] * 7, [3, 3, 3, 3, 1, 3], [3] * WARM])
def test_a_recorded_function_gives_what_the_function_gives(sizes: list[int], device: str) -> None:
    """The last value of an epoch may be of another shape."""

    def fn(state: State, x: Tensor) -> State:
        return State(state.a * 0.5 + x.sum(), state.b + state.a)

    plain = start("cpu")
    for x in numbers("cpu", *sizes):
        plain = fn(plain, x)
    got = after(fn, numbers(device, *sizes), start(device), device)
    torch.testing.assert_close(got, plain)


def test_a_state_may_return_views_of_the_old_one_and_be_written_in_place(device: str) -> None:
    def swapped(state: State, x: Tensor) -> State:
        return State(state.b, state.a.add_(x))

    plain = start("cpu")
    for x in numbers("cpu", *[3] * 6):
        plain = swapped(plain, x)
    got = after(swapped, numbers(device, *[3] * 6), start(device), device)
    torch.testing.assert_close(got, plain)


def test_what_it_was_given_stays(device: str) -> None:
    first, values = start(device), numbers(device, *[3] * 6)
    before = [leaf.cpu().clone() for leaf in (*first, *values)]
    after(lambda state, x: State(state.a + x, state.b), values, first, device)
    assert all(torch.equal(leaf.cpu(), old) for leaf, old in zip((*first, *values), before, strict=True))


def test_a_list_may_be_changed_by_each_call(device: str) -> None:
    """DP-SGD counts its gradients in a list, which a graph would not."""
    seen: list[int] = []
    values = [(x, seen) for x in numbers(device, *[3] * 6)]

    def fn(state: State, value: tuple[Tensor, list[int]]) -> State:
        value[1].append(1)
        return State(state.a + value[0], state.b)

    after(fn, values, start(device), device)
    assert len(seen) == 6


def test_a_function_that_looks_at_a_number_is_told() -> None:
    def fn(state: State, x: Tensor) -> State:
        return State(state.a + float(x.sum()), state.b)

    with another_device() as device, pytest.raises(RuntimeError, match="_local_scalar_dense: the CPU would wait"):
        after(fn, numbers(device, *[3] * 6), start(device), device)


@pytest.mark.parametrize(
    "fn", [lambda state, x: State(state.a, state.b + 1), lambda state, x: State(torch.cat([state.a, x]), 0)]
)
def test_a_state_keeps_its_shape_and_its_numbers(fn: Callable) -> None:
    """A number in the state would stay as it was when the function was recorded."""
    with another_device() as device, pytest.raises(RuntimeError, match="shape of the state, or something"):
        after(fn, numbers(device, *[3] * 6), State(torch.ones(3, device=device), 0), device)


@pytest.mark.parametrize(
    ("name", "fn"),
    [
        ("_to_copy", lambda x: x + torch.ones(3).to(x.device)),
        ("_to_copy", lambda x: x.new_tensor([1.0, 2.0, 3.0])),
        ("index", lambda x: x[x > 0.5].sum() + x),
        ("nonzero", lambda x: x.nonzero().sum() + x),
        ("copy_", lambda x: torch.ones_like(x).copy_(torch.ones(3))),
    ],
)
def test_the_fake_device_knows_what_a_graph_cannot_record(name: str, fn: Callable) -> None:
    with another_device() as device, pytest.raises(RuntimeError, match=f"aten::{name}: the CPU would wait"):
        after(lambda state, x: State(fn(x), state.b), numbers(device, *[3] * 6), start(device), device)


def test_a_function_that_cannot_be_recorded_goes_on_without(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(fn: graph.Repeat) -> graph.Repeat:
        raise RuntimeError("operation not permitted when stream is capturing\nand more")

    monkeypatch.setitem(graph.recorders, "cpu", refuse)
    warn_once.cache_clear()
    with caplog.at_level(logging.WARNING):
        got = after(lambda state, x: State(state.a + x, state.b), numbers("cpu", *[3] * 6), start("cpu"), "cpu")
    torch.testing.assert_close(got.a, 1 + sum(numbers("cpu", *[3] * 6)))
    assert caplog.messages == [
        "A training step could not be recorded as a CUDA graph, so that it takes longer: operation not permitted when "
        "stream is capturing"
    ]
