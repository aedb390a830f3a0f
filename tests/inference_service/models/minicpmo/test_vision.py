"""The eye sees what the recorded one saw: alone, and in one batch with pictures of other shapes."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from inference_service.checkpoints.minicpmo import MiniCPMOCheckpoint
from inference_service.models.minicpmo.slices import Patches, slice_image
from inference_service.models.minicpmo.vision import GRID, Eye, buckets
from tests.inference_service.device.meter import Meter
from tests.inference_service.engine.support import golden
from tests.inference_service.models.minicpmo.test_slices import CASES, slices_of

LIMIT = 5e-5
QUERIES, HIDDEN = 8, 256


@pytest.fixture
def eye(loaded: MiniCPMOCheckpoint) -> Eye:
    return loaded.model.eye


def stranger(seed: int) -> list[Patches]:
    rng = np.random.default_rng(seed)
    image = rng.integers(0, 256, (rng.integers(1, 300), rng.integers(1, 300), 3), np.uint8)
    return slice_image(image, int(rng.integers(1, 10)), 112)[0]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_recorded_picture_is_seen_alike(eye: Eye, case: dict[str, Any]) -> None:
    found, _ = slices_of(case)
    name, stored = case["name"], golden.tensors("vision")
    states, present = eye.encoder(found)
    embeds = torch.stack(eye.see(found))
    expected = stored[f"{name}.encoder_out"]
    slices, patches = expected.shape[:2]
    there = present[:slices, :patches, None]
    assert there.sum() >= patches
    assert golden.close_to(states[:slices, :patches] * there, expected * there, LIMIT)
    assert golden.close_to(embeds, stored[f"{name}.embeds"], LIMIT)


def test_a_slice_is_seen_alone_as_in_a_batch(eye: Eye) -> None:
    slices = [it for i in range(6) for it in stranger(i)]
    assert eye.see([]) == []
    for own, embeds in zip(slices, eye.see(slices), strict=True):
        assert golden.close_to(eye.see([own])[0], embeds, LIMIT)


def test_so_many_slices_are_encoded_at_once_and_no_more(loaded: MiniCPMOCheckpoint) -> None:
    sizes: list[int] = []
    config = replace(loaded.config.vision, slices_at_once=4)
    eye = Eye(config, loaded.model.vpm, loaded.model.resampler)
    hook = eye.encoder.register_forward_hook(lambda module, given, out: sizes.append(len(given[0])))
    slices = (stranger(1) * 9)[:9]
    seen = eye.see(slices)
    hook.remove()
    assert (len(seen), sizes) == (9, [4, 4, 1])


def test_lines_of_patches_are_the_recorded_ones() -> None:
    table = golden.tensors("vision")["position_bucket_table"]
    for count in range(1, GRID + 1):
        assert buckets(count).tolist() == table[count, :count].tolist(), count
        assert (table[count, count:] == -1).all()


@pytest.mark.parametrize("count", [71, 100, 143, 1000])
def test_more_patches_than_lines_share_them(count: int) -> None:
    lines = buckets(count)
    assert len(lines) == count
    assert (lines[0], lines[-1]) == (0, GRID - 1)
    assert set(np.diff(lines).tolist()) == {0, 1}


def test_pictures_go_up_in_one_copy_a_batch_which_the_host_does_not_wait_for(
    eye: Eye, monkeypatch: pytest.MonkeyPatch
) -> None:
    slices = [it for seed in range(6) for it in stranger(seed)]
    with Meter(monkeypatch) as meter:
        eye.see(slices)
    assert meter.others == {}
    assert meter.downloads == 0
    assert meter.uploads == -(-len(slices) // eye.config.slices_at_once)


def test_bfloat16_is_near_float32(loaded: MiniCPMOCheckpoint, small: MiniCPMOCheckpoint) -> None:
    slices = slices_of(CASES[2])[0]
    for seen, exact in zip(small.model.eye.see(slices), loaded.model.eye.see(slices), strict=True):
        assert seen.dtype == torch.bfloat16
        assert (seen.float() - exact).norm() < 0.03 * exact.norm()
