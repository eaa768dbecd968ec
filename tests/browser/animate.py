"""Makes the animated picture of a swap from the screenshots of the last tests: `python -m tests.browser.animate`."""

from __future__ import annotations

from pathlib import Path

from PIL import Image

from switchyard.layout import PROJECT

ARTIFACTS = PROJECT / "tests" / "artifacts"
PICTURE = PROJECT / "docs" / "images" / "page-swap.gif"
WIDTH = 900
FRAME_MS, LAST_MS = 900, 4000


def animate(frames: list[Path], picture: Path) -> None:
    images = [Image.open(path).convert("RGB") for path in frames]
    small = [image.resize((WIDTH, image.height * WIDTH // image.width)) for image in images]
    paletted = [image.quantize(64, dither=Image.Dither.NONE) for image in small]
    durations = [FRAME_MS] * (len(paletted) - 1) + [LAST_MS]
    paletted[0].save(picture, save_all=True, append_images=paletted[1:], duration=durations, loop=0, optimize=True)


if __name__ == "__main__":
    animate(sorted(ARTIFACTS.glob("swap-*.png")), PICTURE)
