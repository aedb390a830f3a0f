"""Slices of a picture for MiniCPM-o: an overview, and a grid of details."""

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

PATCH = 14

Size = tuple[int, int]
"""Width and height, or columns and rows."""


@dataclass(frozen=True)
class SliceGrid:
    """The size of the overview; the grid of details and the size of each, or None."""

    overview: Size
    grid: Size | None = None
    slice: Size | None = None


@dataclass(frozen=True)
class Patches:
    """A slice: its patches row by row, uint8 [rows * columns, 3, 14, 14]."""

    pixels: Tensor
    rows: int
    columns: int


def cut(size: Size, max_slices: int, resolution: int) -> SliceGrid:
    """Return the grid of a picture of `size` with at most `max_slices` slices of about `resolution`
    squared.
    """
    width, height = size
    wanted = min(math.ceil(width * height / resolution**2), max_slices)
    if wanted <= 1:
        return SliceGrid(_fitted(size, resolution, enlarge=True))
    counts = [n for n in (wanted - 1, wanted, wanted + 1) if n != 1 and n <= max_slices]
    grids = [(columns, n // columns) for n in counts for columns in range(1, n + 1) if n % columns == 0]
    ratio = math.log(width / height)
    grid = min(grids, key=lambda grid: abs(ratio - math.log(grid[0] / grid[1])))
    cell = (_divided(width, grid[0]) / grid[0], _divided(height, grid[1]) / grid[1])
    return SliceGrid(_fitted(size, resolution, enlarge=False), grid, _fitted(cell, resolution, enlarge=True))


def _divided(length: float, by: int) -> int:
    return max(round(length / by) * by, by)


def _fitted(size: tuple[float, float], resolution: int, *, enlarge: bool) -> Size:
    width, height = size
    if enlarge or width * height > resolution**2:
        ratio = width / height
        height = int(resolution / math.sqrt(ratio))
        width = int(height * ratio)
    return _divided(width, PATCH), _divided(height, PATCH)


def slice_image(
    image: NDArray[np.uint8], max_slices: int, resolution: int
) -> tuple[list[Patches], Size | None]:
    """Cut up an RGB picture, uint8 [height, width, 3].

    The overview comes first, then the details row by row. The second result is the grid of the details, if
    there are any.
    """
    picture = Image.fromarray(image, "RGB")
    plan = cut(picture.size, max_slices, resolution)
    found = [_patched(picture.resize(plan.overview, Image.Resampling.BICUBIC))]
    if plan.grid is not None and plan.slice is not None:
        (columns, rows), (width, height) = plan.grid, plan.slice
        whole = picture.resize((columns * width, rows * height), Image.Resampling.BICUBIC)
        found += [
            _patched(whole.crop((x * width, y * height, (x + 1) * width, (y + 1) * height)))
            for y in range(rows)
            for x in range(columns)
        ]
    return found, plan.grid


def _patched(picture: Image.Image) -> Patches:
    pixels = torch.from_numpy(np.array(picture))
    rows, columns = pixels.shape[0] // PATCH, pixels.shape[1] // PATCH
    grid = pixels.reshape(rows, PATCH, columns, PATCH, 3).permute(0, 2, 4, 1, 3)
    return Patches(grid.reshape(rows * columns, 3, PATCH, PATCH), rows, columns)
