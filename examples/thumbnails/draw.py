"""Draws pictures for those who have none at hand: ``python -m thumbnails.draw FOLDER``."""

import sys
from pathlib import Path

from PIL import Image


def draw(folder: Path, pictures: int = 3) -> None:
    """Each another part of the Mandelbrot set."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(pictures):
        left = -2.0 + number / 2
        picture = Image.effect_mandelbrot((1200, 900), (left, -1.5, left + 3, 1.5), 60)
        picture.save(folder / f"mandelbrot-{number}.png")


if __name__ == "__main__":
    draw(Path(sys.argv[1]))
