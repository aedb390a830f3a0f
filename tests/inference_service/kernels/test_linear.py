"""The product of rows with panels of weights: right, the same in any crowd, and within its bounds."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor

from inference_service.kernels import panels
from inference_service.kernels.panels import Panels
from inference_service.kernels.selection import usable

if usable("linear"):
    from inference_service.kernels import linear

pytestmark = pytest.mark.skipif(not usable("linear"), reason="no compiler when the package was installed")

WIDTHS = (1, 3, 15, 16, 17, 33, 64, 100, 129)
DEPTHS = (1, 7, 8, 9, 96, 511, 513, 1100)
"""About a step and about what is done with at once."""
ROWS = (*range(1, 30), 127, 128, 129, 300)


def rows(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def layer(width: int, depth: int, bias: bool = True) -> tuple[Tensor, Tensor | None]:
    return rows(width, depth, seed=2), rows(width, seed=3) if bias else None


def exact(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    product = x.double() @ weight.double().T
    return product if bias is None else product + bias.double()


def close(found: Tensor, expected: Tensor, depth: int) -> None:
    """Within what a sum of so many products of normal numbers may lose."""
    torch.testing.assert_close(found.double(), expected, atol=1e-6 * (1 + depth**0.5) ** 1.5, rtol=0)


@pytest.mark.parametrize("depth", DEPTHS)
def test_any_shape_gives_the_product(depth: int) -> None:
    for width in WIDTHS:
        weight, bias = layer(width, depth)
        for biased in (bias, None):
            product = Panels(weight, biased)
            for count in ROWS:
                x = rows(count, depth)
                close(product.product(x), exact(x, weight, biased), depth)


@pytest.mark.parametrize("depth", DEPTHS)
def test_a_row_becomes_the_same_alone_and_among_any_others(depth: int) -> None:
    """Bit for bit: what a session says never depends on how many speak beside it."""
    for width in WIDTHS:
        product, x = Panels(*layer(width, depth)), rows(max(ROWS), depth)
        alone = torch.cat([product.product(row[None]) for row in x])
        for count in ROWS:
            assert torch.equal(product.product(x[:count]), alone[:count])
            assert torch.equal(product.product(x[-count:]), alone[-count:])


def test_no_rows_give_none_and_a_weight_may_lie_anyhow() -> None:
    product = Panels(*layer(70, 24))
    assert product.product(rows(0, 24)).shape == (0, 70)
    assert product.product(rows(3, 0, 24)).shape == (3, 0, 70)
    weight = rows(24, 70).t()
    assert torch.equal(Panels(weight, None).weight(), weight)
    close(Panels(weight, None).product(rows(3, 24)), exact(rows(3, 24), weight, None), 24)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_rows_that_are_no_numbers_spoil_no_others(bad: float) -> None:
    """Nor outputs beyond the last: those that fill up a panel are nobody's."""
    product = Panels(*layer(70, 513))
    for count in ROWS:
        x = rows(count, 513)
        expected = product.product(x)
        broken = count // 2
        x[broken, -1] = bad
        found = product.product(x)
        assert not found[broken].isfinite().any()
        found[broken] = expected[broken]
        assert torch.equal(found, expected)


def test_outputs_that_are_no_numbers_spoil_no_others() -> None:
    weight, bias = layer(70, 24)
    expected = Panels(weight, bias).product(rows(20, 24))
    weight[3, 5] = torch.nan
    found = Panels(weight, bias).product(rows(20, 24))
    assert found.isnan().all(0).nonzero().flatten().tolist() == [3]
    found[:, 3] = expected[:, 3]
    assert torch.equal(found, expected)


def test_nothing_beside_rows_and_outputs_is_read_or_written() -> None:
    """The memory around the inputs is NaN; the memory around the outputs stays unchanged."""
    for width, depth, count in ((70, 513, 13), (1, 1, 1), (17, 9, 129), (64, 96, 16)):
        weight, bias = layer(width, depth)
        x = torch.full((count * depth + 64,), torch.nan)
        y = torch.full((count * width + 64,), 7.0)
        b = torch.full((width + 64,), torch.nan)
        x[32:-32], b[32:-32] = rows(count * depth), torch.zeros(width) if bias is None else bias
        held = Panels(weight, None)
        linear.multiply(
            x[32:].data_ptr(),
            held._panels.data_ptr(),
            b[32:].data_ptr(),
            y[32:].data_ptr(),
            count,
            width,
            depth,
        )
        assert (y[:32] == 7).all()
        assert (y[-32:] == 7).all()
        close(y[32:-32].view(count, width), exact(x[32:-32].view(count, depth), weight, bias), depth)


@pytest.mark.parametrize(
    "x", [rows(3, 23), rows(3, 24).double(), rows(3, 24).bfloat16(), rows(24, 1), torch.zeros(())]
)
def test_rows_of_another_sort_are_refused(x: Tensor) -> None:
    with pytest.raises(ValueError, match=r"takes \[\.\.\., 24\] in float32 on the CPU"):
        Panels(*layer(70, 24)).product(x)


def test_threads_may_multiply_at_once() -> None:
    """The kernel releases the GIL while it computes."""
    product, x = Panels(*layer(512, 512)), rows(64, 512)
    expected = product.product(x)
    with ThreadPoolExecutor(4) as pool:
        assert all(torch.equal(it, expected) for it in pool.map(lambda _: product.product(x), range(64)))


def test_panels_are_for_float32_on_one_thread(one_thread: None) -> None:
    assert panels.fit(torch.float32)
    assert not panels.fit(torch.bfloat16)
    torch.set_num_threads(2)
    assert not panels.fit(torch.float32)
