"""Matrix products are the same by either library, and the kind of processor decides which one is used."""

import pytest
import torch

from pflsweep.ops import products
from pflsweep.util import processor


@pytest.mark.parametrize(
    ("vendor", "capability", "taken"),
    [
        ("AuthenticAMD", "AVX512", "oneDNN"),
        ("AuthenticAMD", "AVX2", "torch"),
        ("GenuineIntel", "AVX512", "torch"),
        ("", "DEFAULT", "torch"),
    ],
)
def test_the_kind_of_processor_decides(
    vendor: str, capability: str, taken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processor, "vendor", lambda: vendor)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    assert products.provider.__wrapped__() == (taken if products._has_onednn() else "torch")


@pytest.mark.parametrize("by", ["oneDNN", "torch"])
def test_products(by: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compare large and small products with float64."""
    if by == "oneDNN" and not products._has_onednn():
        pytest.skip("this PyTorch has no oneDNN")
    monkeypatch.setattr(products, "provider", lambda: by)
    for rows, inputs, outputs in ((64, 300, 256), (3, 5, 4), (1, 2048, 2048)):
        x, weight, bias = torch.randn(rows, inputs), torch.randn(outputs, inputs), torch.randn(outputs)
        g, out = torch.randn(rows, outputs), torch.empty(outputs, inputs)
        wanted = x.double() @ weight.double().t()
        for found, exact in (
            (products.linear(x, weight, None), wanted),
            (products.linear(x, weight, bias), wanted + bias),
            (products.product(g, weight), g.double() @ weight.double()),
            (products.product(g.t(), x, out=out), g.double().t() @ x.double()),
        ):
            torch.testing.assert_close(found.double(), exact, rtol=1e-4, atol=1e-5 * float(exact.abs().max()))
        assert torch.equal(out, products.product(g.t(), x))


def test_only_large_products_of_fp32_are_onednns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "provider", lambda: "oneDNN")
    a, b = torch.zeros(64, 300), torch.zeros(256, 300)
    assert products.is_for_onednn(a, b)
    assert not products.is_for_onednn(a[:1], torch.zeros(8192, 300)), "a row"
    assert not products.is_for_onednn(a[:8], b), "small"
    assert not products.is_for_onednn(a.double(), b.double())
    monkeypatch.setattr(products, "provider", lambda: "torch")
    assert not products.is_for_onednn(a, b)
