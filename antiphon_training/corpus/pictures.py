"""Pictures of coloured shapes, as a camera in a room might take them, and pictures without a shape."""

import io
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFilter
from tqdm import tqdm

from antiphon_training.corpus.recipe import VISION
from antiphon_training.domains.mini import (
    COLOURS,
    NOTHING_SEEN_REPLY,
    SHAPES,
    seen_reply,
)
from inference_service.media.image import decode_frame

TRAINING_SEED = 20_261_202
_SHARD = 200
_NOTHING_SHARE = 0.16
_SIZES = ((320, 240), (320, 240), (320, 180), (240, 320), (256, 256), (160, 120), (400, 300))

Colour = NDArray[np.float64]


@dataclass(frozen=True)
class Scene:
    """The content of a picture: one shape in a colour, or no shape."""

    colour: str = ""
    shape: str = ""

    @property
    def reply(self) -> str:
        """The answer to a question about the scene."""
        return seen_reply(self.colour, self.shape) if self.shape else NOTHING_SEEN_REPLY


NOTHING = Scene()
SCENES = (NOTHING, *(Scene(colour, shape) for colour in COLOURS for shape in SHAPES))


def random_scene(rng: np.random.Generator) -> Scene:
    """Draw a shape in a colour, or in 16 % of the cases none."""
    return NOTHING if rng.random() < _NOTHING_SHARE else SCENES[rng.integers(1, len(SCENES))]


def _hsv(hue: float, saturation: float, value: float) -> Colour:
    """Return RGB from 0 to 255 for a hue in degrees and saturation and value from 0 to 1."""
    at = (np.array([5.0, 3.0, 1.0]) + hue / 60) % 6
    return 255 * (value - value * saturation * np.clip(np.minimum(at, 4 - at), 0, 1))


def _paint(rng: np.random.Generator, colour: str) -> Colour:
    """Draw an RGB colour that people would call `colour`."""
    match colour:
        case "red":
            return _hsv(rng.uniform(-12, 10), rng.uniform(0.7, 1), rng.uniform(0.55, 1))
        case "green":
            return _hsv(rng.uniform(90, 150), rng.uniform(0.5, 1), rng.uniform(0.35, 0.95))
        case "blue":
            return _hsv(rng.uniform(205, 250), rng.uniform(0.6, 1), rng.uniform(0.45, 1))
        case "yellow":
            return _hsv(rng.uniform(47, 63), rng.uniform(0.65, 1), rng.uniform(0.78, 1))
        case "white":
            return _hsv(rng.uniform(0, 360), rng.uniform(0, 0.06), rng.uniform(0.88, 1))
        case _:
            return _hsv(rng.uniform(0, 360), rng.uniform(0, 0.3), rng.uniform(0, 0.15))


def _any_colour(rng: np.random.Generator) -> Colour:
    kind = rng.random()
    if kind < 0.45:
        return np.full(3, rng.choice([255.0, 0.0, 128.0, rng.uniform(0, 255)])) + rng.uniform(-6, 6, 3)
    if kind < 0.75:
        return _hsv(rng.uniform(0, 360), rng.uniform(0, 0.5), rng.uniform(0.1, 1))
    return rng.uniform(0, 255, 3)


def _image(pixels: NDArray[np.floating]) -> Image.Image:
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))


def _rgb(colour: Colour) -> tuple[int, int, int]:
    red, green, blue = (int(c) for c in colour.clip(0, 255))
    return red, green, blue


def _background(rng: np.random.Generator, size: tuple[int, int]) -> Image.Image:
    """Draw a plain, graded, blurred or two-part background, perhaps with thin lines."""
    width, height = size
    base = _any_colour(rng)
    kind = rng.random()
    if kind < 0.35:
        image = Image.new("RGB", size, _rgb(base))
    elif kind < 0.8:
        across, down = (2, 2) if kind < 0.5 else (int(rng.integers(3, 9)), int(rng.integers(3, 7)))
        spread = rng.uniform(10, 90)
        grid = base + rng.normal(0, spread, (down, across, 1)) + rng.normal(0, spread / 3, (down, across, 3))
        image = _image(grid).resize(size, Image.Resampling.BICUBIC)
    else:
        image = Image.new("RGB", size, _rgb(base))
        edge = [(0, height * rng.uniform(0.2, 0.9)), (width, height * rng.uniform(0.2, 0.9))]
        ImageDraw.Draw(image).polygon([*edge, (width, height), (0, height)], fill=_rgb(_any_colour(rng)))
    if rng.random() < 0.35:
        draw = ImageDraw.Draw(image)
        for _ in range(rng.integers(1, 7)):
            ends = [(rng.uniform(-0.2, 1.2) * width, rng.uniform(-0.2, 1.2) * height) for _ in range(2)]
            draw.line(ends, fill=_rgb(_any_colour(rng)), width=max(1, int(height * rng.uniform(0.004, 0.03))))
    return image


def _outline(rng: np.random.Generator, shape: str, radius: float) -> NDArray[np.float64]:
    """Return the corners [n, 2] of a shape round the origin; a circle has many."""
    turn = rng.uniform(-20, 20) if rng.random() < 0.7 else rng.uniform(0, 360)
    match shape:
        case "circle":
            angles = np.linspace(0, 360, 48, endpoint=False)
        case "square":
            angles = np.array([45.0, 135, 225, 315])
        case _:
            angles = np.array([-90.0, 30, 150]) + rng.uniform(-8, 8, 3)
    corners = radius * np.stack([np.cos(np.radians(angles)), np.sin(np.radians(angles))], 1)
    corners *= np.array([rng.uniform(0.88, 1.14), rng.uniform(0.88, 1.14)])
    cos, sin = np.cos(np.radians(turn)), np.sin(np.radians(turn))
    return np.asarray(corners @ np.array([[cos, sin], [-sin, cos]]))


def _mask(size: tuple[int, int], corners: NDArray[np.float64]) -> Image.Image:
    mask = Image.new("L", size, 0)
    ImageDraw.Draw(mask).polygon([(x, y) for x, y in corners], fill=255)
    return mask


def _stands_out(image: Image.Image, around: Image.Image, paint: Colour) -> bool:
    """Return whether a shape in this colour differs enough from the pixels under the mask `around`."""
    behind = np.asarray(image, np.float64)[np.asarray(around) > 0]
    return float((np.abs(behind - paint).sum(1) > 110).mean()) > 0.93


def _fill(rng: np.random.Generator, size: tuple[int, int], paint: Colour) -> Image.Image:
    """Return an image in this colour, perhaps lit from one side."""
    light = rng.uniform(0, 0.16) * rng.uniform(-1, 1, (2, 2, 1))
    return _image(paint * (1 + light)).resize(size, Image.Resampling.BILINEAR)


def draw_picture(rng: np.random.Generator, scene: Scene, size: tuple[int, int]) -> Image.Image:
    """Return an RGB picture of the scene, `size` wide and high."""
    image = _background(rng, size)
    if scene.shape:
        radius = min(size) * rng.uniform(0.14, 0.46)
        reach = np.minimum(radius * 0.95, np.array(size) / 2)
        centre = rng.uniform(reach, np.array(size) - reach)
        corners = _outline(rng, scene.shape, radius)
        mask, around = _mask(size, corners + centre), _mask(size, corners * 1.25 + centre)
        paint = _paint(rng, scene.colour)
        while not _stands_out(image, around, paint):
            image = _background(rng, size)
        if rng.random() < 0.15:
            image = _with_card(rng, image, around, centre, radius, paint)
        if rng.random() < 0.12:
            image.paste(_rgb(rng.uniform(0.2, 0.7) * paint), mask=_mask(size, corners * 1.06 + centre))
        image.paste(_fill(rng, size, paint), mask=mask)
    if rng.random() < 0.4:
        image = image.filter(ImageFilter.GaussianBlur(rng.uniform(0.3, min(size) * 0.009)))
    return _lit(rng, image)


def _with_card(
    rng: np.random.Generator, image: Image.Image, around: Image.Image, centre: NDArray[np.float64],
    radius: float, paint: Colour,
) -> Image.Image:  # fmt: skip
    """Put a sheet of paper behind the shape, unless paper and shape are too alike in colour."""
    card = image.copy()
    half = radius * rng.uniform(1.15, 1.7, 2)
    box = [tuple(centre - half), tuple(centre + half)]
    ImageDraw.Draw(card).rectangle(box, fill=_rgb(_any_colour(rng)))
    return card if _stands_out(card, around, paint) else image


def _lit(rng: np.random.Generator, image: Image.Image) -> Image.Image:
    """Vary brightness and tint of an image and add noise, for another light and camera."""
    pixels = np.asarray(image, np.float32)
    if rng.random() < 0.75:
        gain = rng.uniform(0.72, 1.2) * rng.uniform(0.93, 1.07, 3)
        pixels = pixels * gain.astype(np.float32) + np.float32(rng.uniform(-12, 12))
    if rng.random() < 0.6:
        pixels = pixels + rng.standard_normal(pixels.shape, np.float32) * np.float32(rng.uniform(1, 16))
    return _image(pixels)


def encoded(rng: np.random.Generator, image: Image.Image) -> bytes:
    """Return the picture as a file: JPEG of any quality in 90 % of the cases, else PNG or WebP."""
    file = io.BytesIO()
    kind = rng.random()
    if kind < 0.9:
        image.save(file, "JPEG", quality=int(rng.integers(30, 96)))
    elif kind < 0.95:
        image.save(file, "PNG", compress_level=1)
    else:
        image.save(file, "WEBP", quality=int(rng.integers(40, 96)), method=0)
    return file.getvalue()


def _shard(seed: int) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    rng = np.random.default_rng(seed)
    pixels, labels = [], []
    for _ in range(_SHARD):
        scene = random_scene(rng)
        image = draw_picture(rng, scene, _SIZES[rng.integers(len(_SIZES))])
        pixels.append(decode_frame(encoded(rng, image), field="picture", side=VISION.image_size))
        labels.append(SCENES.index(scene))
    return np.stack(pixels), np.array(labels)


def build(path: Path, pictures: int, processes: int) -> None:
    """Draw the training pictures, decode them as the worker does, and write them to `path` (.npz)."""
    seeds = [TRAINING_SEED + i for i in range(-(-pictures // _SHARD))]
    with ProcessPoolExecutor(processes) as pool:
        shards = list(tqdm(pool.map(_shard, seeds), total=len(seeds), desc="pictures", unit_scale=_SHARD))
    pixels, labels = zip(*shards, strict=True)
    np.savez(path, pixels=np.concatenate(pixels), label=np.concatenate(labels))


class PictureSet:
    """The pictures made by `build`, uint8 [side, side, 3], by scene."""

    def __init__(self, path: Path) -> None:
        data = np.load(path)
        self.pixels: NDArray[np.uint8] = data["pixels"]
        self.labels: NDArray[np.int64] = data["label"]
        self._of = {scene: np.flatnonzero(self.labels == i) for i, scene in enumerate(SCENES)}

    def picture(self, rng: np.random.Generator, scene: Scene) -> NDArray[np.uint8]:
        """Draw one picture of the scene, perhaps mirrored."""
        pixels: NDArray[np.uint8] = self.pixels[rng.choice(self._of[scene])]
        return pixels[:, ::-1] if rng.random() < 0.5 else pixels
