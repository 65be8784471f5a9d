"""What workers of one machine share, and what they tell when a trial goes wrong."""

import os
from typing import Any

import pytest
import torch

from pflsweep import tracking
from pflsweep.sweep import worker
from pflsweep.sweep.board import Board
from pflsweep.sweep.plan import Job, Plan


@pytest.fixture
def threads() -> Any:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize(("count", "share"), [(2, 4), (3, 2), (16, 1)])
def test_threads_are_divided(count: int, share: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    worker._share_machine(0, count)
    assert torch.get_num_threads() == share


@pytest.mark.usefixtures("threads")
def test_gpus_are_assigned_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[int] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", taken.append)
    for index in range(4):
        worker._share_machine(index, 4)
    assert taken == [0, 1, 0, 1]


@pytest.mark.parametrize(
    ("error", "reason", "says"),
    [
        (torch.OutOfMemoryError("CUDA out of memory"), "OutOfMemoryError: CUDA out of memory", "trace"),
        (ZeroDivisionError("a bug\nof two lines"), "ZeroDivisionError: a bug of two lines", "trace"),
        (worker.UserError("a bad value"), "a bad value", "input"),
        (worker.Diverged("no loss is finite"), "Diverged: no loss is finite", None),
    ],
)
def test_a_trial_that_fails_says_why(
    error: Exception, reason: str, says: str | None, plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(worker, "run_trial", fails)
    board = Board(plan)
    board.prepare()
    worker.work(plan)
    board.refresh()
    slot = board.slots[Job(0, False, 0)]
    assert (slot.status, slot.reason) == ("failed", reason)
    assert [key for key in ("trace", "input") if slot.result.get(key)] == ([says] if says else [])
    assert tracking.SWEEP not in os.environ  # what is trained next in this process is not this sweep's
    assert board.slots[Job(0, True, 0)].reason == "its search has no result: every point failed or was pruned"
