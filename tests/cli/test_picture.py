"""Pictures of `antiphon chat` that are larger than a server takes."""

import base64
import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from antiphon_command.conversations.picture import MOST_BYTES, MOST_PIXELS, read_picture
from tests.cli.support.process import run_without
from tests.cli.test_chat import Requests, chat
from ws_adapter.protocol.media.images import MAX_FRAME_BYTES, MAX_FRAME_PIXELS

ORIENTATION = 0x0112
TURNED_RIGHT = 6


def noise(width: int, height: int) -> Image.Image:
    """Return a picture that compresses badly."""
    pixels = np.random.default_rng(0).integers(0, 256, (height, width, 3), np.uint8)
    return Image.fromarray(pixels)


def opened(data: bytes) -> Image.Image:
    return Image.open(io.BytesIO(data))


async def test_picture_over_server_limit_is_scaled_down_and_reported(tmp_path: Path) -> None:
    assert (MOST_BYTES, MOST_PIXELS) == (MAX_FRAME_BYTES, MAX_FRAME_PIXELS)
    photo = tmp_path / "photo.jpg"
    noise(2400, 1800).save(photo, quality=95)
    requests = Requests("Noise.")
    outcome = await chat(requests.answer, "What is it?", "--image", photo)

    assert (outcome.code, outcome.out) == (0, "Noise.\n")
    [told] = outcome.err.splitlines()
    assert told.startswith(f"{photo}: scaled down from 2400 x 1800, ")
    assert told.endswith("; a server takes 1 MiB and 4 megapixels")
    sent = base64.b64decode(requests[0]["messages"][0]["content"][0]["data"])
    assert len(sent) <= MAX_FRAME_BYTES
    picture = opened(sent)
    assert picture.width * picture.height <= MAX_FRAME_PIXELS
    assert picture.width / picture.height == pytest.approx(4 / 3, rel=0.01)

    within = tmp_path / "within.png"
    noise(500, 500).save(within)
    outcome = await chat((requests := Requests("Noise.")).answer, "What is it?", "--image", within)
    assert outcome.err == ""
    assert base64.b64decode(requests[0]["messages"][0]["content"][0]["data"]) == within.read_bytes()


def test_scaled_picture_stands_upright(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[ORIENTATION] = TURNED_RIGHT
    Image.linear_gradient("L").resize((3000, 2000)).save(tmp_path / "photo.jpg", exif=exif)
    picture = opened(read_picture(str(tmp_path / "photo.jpg")).data)

    assert picture.width < picture.height
    assert picture.getpixel((0, 0)) > picture.getpixel((picture.width - 1, 0))  # type: ignore[operator]


def test_transparent_pixels_show_white(tmp_path: Path) -> None:
    Image.new("RGBA", (2500, 2500), (255, 0, 0, 0)).save(tmp_path / "logo.png")
    picture = opened(read_picture(str(tmp_path / "logo.png")).data)

    assert picture.getpixel((100, 100)) == (255, 255, 255)


def test_picture_that_cannot_be_scaled_down_is_refused(tmp_path: Path) -> None:
    (tmp_path / "photo.jpg").write_bytes(bytes(MOST_BYTES + 1))
    Image.new("1", (20_000, 10_000)).save(tmp_path / "map.png")

    for name, why in (("photo.jpg", "is damaged or no picture"), ("map.png", "more pixels than can be read")):
        with pytest.raises(Exception, match=why) as failure:
            read_picture(str(tmp_path / name))
        assert "a server takes at most 1 MiB and 4 megapixels" in str(failure.value)


def test_picture_over_the_limit_without_pillow_names_the_extra(tmp_path: Path) -> None:
    photo = tmp_path / "photo.png"
    noise(700, 700).save(photo)
    done = run_without("PIL", "chat", "What is it?", "--image", str(photo))

    assert done.code == 2
    assert done.err == (
        f"{photo} has 1.4 MiB; a server takes at most 1 MiB and 4 megapixels. "
        "Scale it down, or have this command do so: pip install 'antiphon[image]'\n"
    )
