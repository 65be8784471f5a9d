"""The conformance properties in other modes of computing gradients: in bf16, and compiled.

Chunks, stacks and workers are modes too; their properties are in test_methods.py and tests/engine/test_workers.py.
"""

from dataclasses import replace
from typing import Any

import pytest

from pflsweep.conformance.case import SCHEDULE, Case, advance, assert_same, known, models
from pflsweep.conformance.fixtures import CLIENTS
from pflsweep.conformance.properties import (
    MOST,
    PROPERTIES,
    Property,
    another_device_changes_nothing,
    any_chunking,
    any_chunking_with_noise,
    labels_do_not_matter,
    stacking_changes_nothing,
)
from pflsweep.engine.simulation import Simulation
from pflsweep.ops import compiled
from pflsweep.plugins.privacy import DpSgd
from tests.conformance.test_methods import TABLE, TRIED, case

pytestmark = pytest.mark.slow

# Sums have another order there
ROUNDED = (any_chunking, any_chunking_with_noise, stacking_changes_nothing, labels_do_not_matter)
ON_CPU = [property_ for property_ in PROPERTIES if property_ is not another_device_changes_nothing]
EXACT = [property_ for property_ in ON_CPU if property_ not in ROUNDED]
# Methods without gradients of the plain loss
OWN_LOSS = (
    *("fedphp", "fedphp kd", "fml", "fedproto", "fedproto prototypes", "fedcp", "gpfl", "moon", "fedntd", "fedlc"),
    "as_run/pfllib_fedphp",
)
# Traced programs, shared by all tests
TRACED: dict[Any, Any] = {}
# ALA and DP-SGD have gradients of their own, which are the same with every method
PLUGGED = [name for name in TRIED if TABLE[name].ala or TABLE[name].plugs]
NAMES = [name for name in TRIED if name not in PLUGGED or name in ("fedavg ala", "fedavg private")]
PUBLIC = [name for name in NAMES if DpSgd not in TABLE[name].plugs]


@pytest.mark.parametrize("property_", EXACT, ids=lambda p: p.__name__)
@pytest.mark.parametrize("name", NAMES)
def test_property_in_bf16(name: str, property_: Property) -> None:
    property_(replace(case(name), precision="bf16"))


@pytest.fixture
def once_traced(traced: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let equal programs serve all tests."""
    monkeypatch.setattr(compiled, "_compiled", TRACED)


@pytest.mark.parametrize("name", PUBLIC)
@pytest.mark.usefixtures("once_traced")
def test_compiled_gradients_are_the_same(name: str) -> None:
    for how in ({"chunk": 1}, {"chunk": CLIENTS, "where": {"images": True}}):
        plain, ours = (advanced(replace(case(name), compiled=size), **how) for size in (0, SCHEDULE.batch))
        assert_same({**models(ours), **known(ours)}, {**models(plain), **known(plain)}, f"compiled, {how}", 1e-8)
        assert ours.task._program._programs or name in OWN_LOSS, "nothing was compiled"


def advanced(of: Case, **how: Any) -> Simulation:
    return advance(of.simulation(participation=MOST, **how), 3)


@pytest.mark.parametrize("property_", ON_CPU, ids=lambda p: p.__name__)
@pytest.mark.parametrize("name", ["fedala", "pgfed", "asks back"])
@pytest.mark.usefixtures("once_traced")
def test_property_compiled(name: str, property_: Property, monkeypatch: pytest.MonkeyPatch) -> None:
    ran, run = [], compiled.Program.run
    monkeypatch.setattr(compiled.Program, "run", lambda *given: ran.append(1) or run(*given))
    property_(replace(case(name), compiled=SCHEDULE.batch))
    assert ran
