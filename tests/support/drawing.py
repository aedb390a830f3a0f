"""Small pictures for tests, drawn on the spot."""

import io

from PIL import Image, ImageDraw

Size = tuple[int, int]


def picture(colour: str = "red", shape: str = "circle", size: Size = (320, 240)) -> Image.Image:
    """A coloured circle, square or triangle in the middle of light grey."""
    image = Image.new("RGB", size, (205, 205, 200))
    draw = ImageDraw.Draw(image)
    (x, y), r = (size[0] / 2, size[1] / 2), min(size) / 3
    match shape:
        case "circle":
            draw.ellipse((x - r, y - r, x + r, y + r), fill=colour)
        case "square":
            draw.rectangle((x - r, y - r, x + r, y + r), fill=colour)
        case _:
            draw.polygon([(x, y - r), (x + r, y + r), (x - r, y + r)], fill=colour)
    return image


def encoded(image: Image.Image, kind: str = "JPEG", **options: object) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def jpeg(colour: str = "red", shape: str = "circle", size: Size = (320, 240)) -> bytes:
    return encoded(picture(colour, shape, size), quality=80)
