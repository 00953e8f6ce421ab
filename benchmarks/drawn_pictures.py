"""Drawn pictures for detectors of characters and of text: what stands in for photographs where none can be had.

Every picture is drawn from a seed of its own, so that a longer list begins with a shorter one. Backgrounds are gradients with
blurred shapes, noise and strokes; what is written has fonts, sizes, colours and angles of many kinds. Colours are drawn
alike for all three channels, so that networks which read them in the order blue, green, red see the same kind of pictures.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from PIL import Image, ImageDraw, ImageFilter, ImageFont

Draws = np.random.Generator
Colour = tuple[int, int, int]
Box = tuple[int, int, int, int]

FONTS = tuple(
    f"{name}.ttf"
    for name in (
        *("DejaVuSans", "DejaVuSans-Bold", "DejaVuSans-Oblique", "DejaVuSansMono", "DejaVuSerif", "DejaVuSerif-Bold"),
        *("DejaVuSerif-Italic", "STIXGeneral", "STIXGeneralBol", "STIXGeneralItalic", "cmr10", "cmss10", "cmtt10"),
    )
)
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
TEXT = (
    "open closed exit entry street station market bread coffee fresh price sale total only from house garden "
    "school north south river bridge number please wait here parking hotel room bank post office library "
    "museum theatre music today tomorrow morning evening winter summer water light paper train ticket platform "
    "window door left right"
)
WORDS = tuple(TEXT.split())
PADDING = (114, 114, 114)
"""What is beside a picture that is not square, as YOLOX was trained."""


@dataclass(frozen=True)
class Pictures:
    """A kind of pictures: a side, and how one is drawn."""

    side: int
    draw: Callable[[Draws, int], Image.Image]


def draw_folder(kind: Pictures, folder: Path, count: int, seed: int) -> list[Path]:
    """So many pictures as PNG files; those that are there are not drawn again."""
    folder.mkdir(parents=True, exist_ok=True)
    files = [folder / f"{number:05}.png" for number in range(count)]
    for number, file in enumerate(files):
        if not file.is_file():
            unfinished = file.with_suffix(".unfinished")
            kind.draw(np.random.default_rng((seed, number)), kind.side).save(unfinished, "PNG")
            unfinished.replace(file)
    return files


def characters(draws: Draws, side: int) -> Image.Image:
    """Single characters strewn over a picture, as in tests for people; half are wide, with padding below."""
    height = side if draws.random() < 0.5 else round(side * draws.uniform(0.35, 0.7))
    picture = background(draws, side, height)
    taken: list[Box] = []
    for _ in range(draws.integers(4, 12)):
        size = int(draws.uniform(0.08, 0.16) * side)
        text = LETTERS[draws.integers(len(LETTERS))]
        write(draws, picture, taken, text, size, draws.uniform(-40, 40))
    strokes(draws, picture, int(draws.integers(0, 8)))
    whole = Image.new("RGB", (side, side), PADDING)
    whole.paste(picture, (0, 0))
    return whole


def lines_of_text(draws: Draws, side: int) -> Image.Image:
    """Lines of words, most of them nearly level, as on signs, labels and pages."""
    picture = background(draws, side, side)
    taken: list[Box] = []
    tilt = draws.normal(0, 6) if draws.random() < 0.7 else draws.uniform(-30, 30)
    for _ in range(draws.integers(3, 11)):
        words = [WORDS[draws.integers(len(WORDS))] for _ in range(draws.integers(1, 5))]
        form = (str.lower, str.upper, str.title)[draws.integers(3)]
        if draws.random() < 0.3:
            words[-1] = f"{draws.integers(1, 10000)}"
        size = int(np.exp(draws.uniform(np.log(13), np.log(48))))
        write(draws, picture, taken, form(" ".join(words)), size, tilt + draws.normal(0, 1))
    strokes(draws, picture, int(draws.integers(0, 3)))
    return picture


KINDS = {"yolox": Pictures(416, characters), "ppocr": Pictures(320, lines_of_text)}


def background(draws: Draws, width: int, height: int) -> Image.Image:
    """A gradient between two colours, with shapes, blurred, and noise."""
    angle = draws.uniform(0, 2 * np.pi)
    across, down = np.meshgrid(np.linspace(-1, 1, width), np.linspace(-1, 1, height))
    share = (0.5 + 0.35 * (across * np.cos(angle) + down * np.sin(angle)))[..., None].clip(0, 1)
    first = draws.integers(0, 256, 3)
    second = (first + draws.integers(-110, 111, 3)).clip(0, 255)
    picture = Image.fromarray((first * share + second * (1 - share)).astype(np.uint8))
    pen = ImageDraw.Draw(picture)
    for _ in range(draws.integers(0, 9)):
        left, top = int(draws.integers(-40, width)), int(draws.integers(-40, height))
        size = [int(edge) for edge in draws.integers(20, max(width, height) // 2, 2)]
        shape = pen.ellipse if draws.random() < 0.5 else pen.rectangle
        fill = tuple(int(value) for value in (first + draws.integers(-90, 91, 3)).clip(0, 255))
        shape((left, top, left + size[0], top + size[1]), fill=fill)
    picture = picture.filter(ImageFilter.GaussianBlur(draws.uniform(0, 4)))
    noise = draws.normal(0, draws.uniform(0, 14), (height, width, 3))
    return Image.fromarray((np.asarray(picture) + noise).clip(0, 255).astype(np.uint8))


def write(draws: Draws, picture: Image.Image, taken: list[Box], text: str, size: int, degrees: float) -> None:
    """Puts a text where there is room for it; after some tries, nowhere."""
    font = _font(FONTS[draws.integers(len(FONTS))], size)
    left, top, right, bottom = (int(edge) for edge in font.getbbox(text))
    mask = Image.new("L", (right - left + 8, bottom - top + 8))
    ImageDraw.Draw(mask).text((4 - left, 4 - top), text, fill=255, font=font)
    mask = mask.rotate(degrees, Image.Resampling.BICUBIC, expand=True)
    inked = mask.getbbox()
    mask = mask.crop(inked) if inked else mask
    if mask.width >= picture.width or mask.height >= picture.height:
        return
    for _ in range(20):
        x, y = (int(draws.integers(0, room)) for room in (picture.width - mask.width, picture.height - mask.height))
        box = (x, y, x + mask.width, y + mask.height)
        if not any(_meet(box, other) for other in taken):
            taken.append(box)
            picture.paste(_contrasting(draws, picture.crop(box)), box, mask)
            return


def strokes(draws: Draws, picture: Image.Image, count: int) -> None:
    """Thin lines across what is written."""
    pen = ImageDraw.Draw(picture)
    for _ in range(count):
        ends = [int(draws.integers(0, edge)) for edge in (picture.width, picture.height) * 2]
        fill = tuple(int(value) for value in draws.integers(0, 256, 3))
        pen.line(ends, fill=fill, width=int(draws.integers(1, 3)))


def _contrasting(draws: Draws, under: Image.Image) -> Colour:
    """A colour that can be told from what is under it."""
    mean = np.asarray(under).reshape(-1, 3).mean(0)
    found = [draws.integers(0, 256, 3) for _ in range(8)]
    wanted = draws.uniform(80, 260)
    best = next(
        (one for one in found if np.abs(one - mean).sum() >= wanted), max(found, key=lambda one: _apart(one, mean))
    )
    return int(best[0]), int(best[1]), int(best[2])


def _apart(one: Any, other: Any) -> float:
    return float(np.abs(one - other).sum())


def _meet(one: Box, other: Box, apart: int = 4) -> bool:
    return (
        one[0] < other[2] + apart
        and other[0] < one[2] + apart
        and one[1] < other[3] + apart
        and other[1] < one[3] + apart
    )


@cache
def _font(name: str, size: int) -> ImageFont.FreeTypeFont:
    """From matplotlib's package: the same wherever it is installed."""
    return ImageFont.truetype(str(Path(matplotlib.get_data_path()) / "fonts" / "ttf" / name), size)
