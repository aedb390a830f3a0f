"""Pictures are cut up as recorded, and whatever their shape into no more than they may become."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from inference_service.media.image import MAX_PIXELS, MAX_RATIO
from inference_service.models.minicpmo.slices import PATCH, Patches, cut, slice_image
from inference_service.models.minicpmo.vision import scaled
from tests.inference_service.engine.support import golden
from tests.support.long import examples

RULES = golden.recording("vision")["slice_rules_448"]
CASES = golden.recording("vision")["cases"]
HALF = torch.full((3, 1, 1), 0.5)


def slices_of(case: dict[str, Any]) -> tuple[list[Patches], tuple[int, int] | None]:
    image = golden.tensors("vision")[f"image_{case['image']}_u8"].numpy()
    return slice_image(image, case["max_slice_nums"], case["scale_resolution"])


def pixel_values(patches: Patches) -> Tensor:
    """In the recorded layout: [3, 14, 14 * patches]."""
    return scaled(patches.pixels, HALF, HALF).permute(1, 2, 0, 3).flatten(2)


def test_there_are_48_recorded_rules_and_five_pictures() -> None:
    assert (len(RULES), len(CASES)) == (48, 5)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: f"{rule['w']}x{rule['h']}-{rule['max_slice_nums']}")
def test_recorded_rule(rule: dict[str, Any]) -> None:
    plan = cut((rule["w"], rule["h"]), rule["max_slice_nums"], 448)
    assert list(plan.overview) == rule["source_wh"]
    assert (list(plan.grid) if plan.grid else None) == rule["grid"]
    assert (list(plan.slice) if plan.slice else None) == rule["slice_wh"]
    assert 1 + (plan.grid[0] * plan.grid[1] if plan.grid else 0) == rule["n_slices"]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_recorded_pixels_are_reproduced(case: dict[str, Any]) -> None:
    found, grid = slices_of(case)
    stored = golden.tensors("vision")

    assert (list(grid) if grid else None) == case["grid"]
    assert [[it.rows, it.columns] for it in found] == case["tgt_sizes"]
    assert stored[f"{case['name']}.tgt_sizes"].tolist() == case["tgt_sizes"]
    seen = 0
    for i, patches in enumerate(found):
        values = pixel_values(patches)
        total, absolute = values.double().sum().item(), values.double().abs().sum().item()
        assert total == pytest.approx(case["pixel_sum"][i], abs=1e-2)
        assert absolute == pytest.approx(case["pixel_abs_sum"][i], abs=1e-2)
        name = f"{case['name']}.pixel_values.{i}"
        expected = stored.get(name, stored.get(f"{name}.first_columns"))
        if expected is not None:
            seen += 1
            assert torch.equal(values[:, :, : expected.shape[2]], expected)
    assert seen >= 1


def test_patches_are_the_picture() -> None:
    """Put together again they are the pixels, row by row."""
    rng = np.random.default_rng(0)
    image = rng.integers(0, 256, (3 * PATCH, 5 * PATCH, 3), np.uint8)
    side = int(np.ceil(np.sqrt(3 * 5) * PATCH))
    (found,), grid = slice_image(image, 1, side)
    assert grid is None
    assert (found.rows, found.columns, found.pixels.dtype) == (3, 5, torch.uint8)
    rows = found.pixels.reshape(3, 5, 3, PATCH, PATCH).permute(0, 3, 1, 4, 2)
    assert np.array_equal(rows.reshape(image.shape).numpy(), image)


sides = st.integers(1, 4000)


@settings(deadline=None, max_examples=examples(300))
@given(sides, sides, st.integers(1, 9))
def test_no_picture_becomes_more_than_it_may(width: int, height: int, most: int) -> None:
    """Of pictures that `decode_picture` lets through."""
    if width * height > MAX_PIXELS or max(width, height) > MAX_RATIO * min(width, height):
        return
    plan = cut((width, height), most, 448)
    details = plan.grid[0] * plan.grid[1] if plan.grid else 0
    assert details <= most
    for size in (plan.overview, plan.slice or plan.overview):
        assert all(side % PATCH == 0 and side >= PATCH for side in size)
        assert size[0] * size[1] <= 1.35 * 448**2


@pytest.mark.parametrize("size", [(1, 1), (1, 20), (20, 1), (2000, 2000), (8000, 400)])
@pytest.mark.parametrize("most", [1, 9])
def test_extreme_pictures_are_cut_up(size: tuple[int, int], most: int) -> None:
    found, grid = slice_image(np.zeros((size[1], size[0], 3), np.uint8), most, 448)
    assert len(found) == 1 + (grid[0] * grid[1] if grid else 0)
    for patches in found:
        assert patches.pixels.shape == (patches.rows * patches.columns, 3, PATCH, PATCH)
