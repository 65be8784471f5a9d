"""The conformance properties with gradients in bf16.

Chunks, stacks and workers are modes too; their properties are in test_methods.py and tests/engine/test_workers.py.
"""

from dataclasses import replace

import pytest

from pflsweep.conformance.properties import (
    PROPERTIES,
    Property,
    another_device_changes_nothing,
    any_chunking,
    any_chunking_with_noise,
    client_numbers_do_not_matter,
    per_client_lr_in_any_chunking,
    stacking_changes_nothing,
)
from tests.conformance.test_methods import TABLE, TRIED, case

pytestmark = pytest.mark.slow

# Sums have another order there
ROUNDED = (
    any_chunking,
    any_chunking_with_noise,
    per_client_lr_in_any_chunking,
    stacking_changes_nothing,
    client_numbers_do_not_matter,
)
ON_CPU = [property_ for property_ in PROPERTIES if property_ is not another_device_changes_nothing]
EXACT = [property_ for property_ in ON_CPU if property_ not in ROUNDED]
# ALA and DP-SGD have gradients of their own, which are the same with every method
PLUGGED = [name for name in TRIED if TABLE[name].ala or TABLE[name].plugs]
NAMES = [name for name in TRIED if name not in PLUGGED or name in ("fedavg ala", "fedavg private")]


@pytest.mark.parametrize("property_", EXACT, ids=lambda p: p.__name__)
@pytest.mark.parametrize("name", NAMES)
def test_property_in_bf16(name: str, property_: Property) -> None:
    property_(replace(case(name), precision="bf16"))
