"""Worker processes: the same bits as one process, whatever the method; and what happens when one of them fails."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch

from pflsweep.algorithms.fedavg import FedAvg
from pflsweep.check.case import Case, advance, assert_same, known, models, packed, unpacked
from pflsweep.check.command import case_of
from pflsweep.check.properties import (
    LONG,
    MOST,
    PROPERTIES,
    Property,
    any_chunking_with_noise,
    hard_clients_are_survived,
)
from pflsweep.engine import memory, parallel
from pflsweep.engine.parallel import Workers
from pflsweep.engine.protocol import Verbs
from pflsweep.engine.simulation import Result, Simulation
from pflsweep.errors import UserError
from pflsweep.plugins.privacy import DpSgd
from tests.broken import SendsMoreThanItSays
from tests.test_conformance import TABLE, TRIED, case

pytestmark = pytest.mark.skipif(not parallel.possible(torch.device("cpu")), reason="workers need Linux without a GPU")

FORK = parallel._fork


@pytest.fixture(autouse=True)
def forks(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Short work goes to workers too. Their pids; at the end none of them is left."""
    pids: list[int] = []

    def counted(*args: Any) -> Any:
        pipe, pid = FORK(*args)
        pids.append(pid)
        return pipe, pid

    monkeypatch.setattr(parallel, "PAYS", 0.0)
    monkeypatch.setattr(parallel, "_fork", counted)
    yield pids
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def followed(sim: Simulation, rounds: int) -> dict[str, Any]:
    """Some rounds further, all that can be seen of a simulation."""
    results: list[Result] = list(islice(sim.run(), rounds))
    seen: dict[str, Any] = {**known(sim), **models(sim)}
    for k, result in enumerate(results):
        seen |= {f"{k} {view} {name}": torch.from_numpy(column) for view, score in result.scores.items()
                 for name, column in score._asdict().items()}  # fmt: skip
        seen |= {f"{k} shown {name}": value for name, value in result.shown.items()}
        seen |= {f"{k} epsilon {name}": value for name, value in (result.privacy or NoPrivacy)._asdict().items()}
        seen[f"{k} counts"] = torch.tensor([result.images, *result.traffic], dtype=torch.float64)
    return seen


class _NoPrivacy:
    @staticmethod
    def _asdict() -> dict[str, Any]:
        return {}


NoPrivacy = _NoPrivacy()


@pytest.mark.parametrize("state", ["fresh", "kept"])
@pytest.mark.parametrize("name", TRIED)
def test_workers_change_no_bit(name: str, state: str, forks: list[int]) -> None:
    """Two, then three, in a simulation that goes on from the checkpoint of the two."""
    of, how = replace(case(name), optimiser_state=state), {"participation": MOST, "eval_every": 1}
    one, two = of.simulation(**how), replace(of, workers=2).simulation(**how)
    assert_same(followed(two, 2), followed(one, 2), "two workers")
    three = unpacked(replace(of, workers=3).simulation(**how), packed(two))
    assert_same(followed(three, 2), followed(one, 2), "three workers, resumed")
    assert len(forks) >= 2 + 2 + 3 + 3 + 4 * 2, "both train and evaluate in forks"


@pytest.mark.parametrize("property_", PROPERTIES, ids=lambda p: p.__name__)
@pytest.mark.parametrize("name", ["fedavg", "fedala", "pgfed", "fedfomo", "scaffold", "asks back", "fedavg private"])
def test_property(name: str, property_: Property) -> None:
    if DpSgd in TABLE[name].plugs and property_ is any_chunking_with_noise:
        pytest.skip("DP-SGD refuses batch norm")
    property_(replace(case(name), workers=2))
