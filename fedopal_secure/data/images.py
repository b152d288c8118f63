"""Image files to uint8 arrays: one meaning for every colour mode, orientation and bit depth that people have.

Each decoded image is (h, w) for greyscale or (h, w, 3) for RGB, upright and opaque. Only the formats in
`SUFFIXES` are opened, so that a file from a stranger cannot reach the rarer decoders of the imaging library.
"""

from __future__ import annotations

import io
import warnings
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from fedopal_secure.core.errors import InputError
from fedopal_secure.data.dicom import decode_dicom, is_dicom
from fedopal_secure.data.records import shown

SUFFIXES: Final = frozenset(
    {".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".dcm", ".dicom"},
)
MAX_PIXELS: Final = 89_478_485  # as Pillow warns at: a quarter of a gigabyte as RGB
# Scaling the shorter side up to a backbone's input makes the longer one so many times as long.
MAX_RATIO: Final = 100
_FORMATS: Final = ("JPEG", "PNG", "BMP", "GIF", "WEBP", "TIFF")


class UnreadableImage(InputError):
    """One image cannot be used, for `reason`; `--skip-unreadable` leaves it out."""

    def __init__(self, name: object, reason: str) -> None:
        self.reason = reason
        super().__init__(
            f"unreadable image {shown(name)}: {reason}; repair or remove it, or use --skip-unreadable where offered"
        )


def is_image_name(name: str) -> bool:
    """True for a visible file whose suffix, in any case, is that of a format we open."""
    path = Path(name)
    return path.suffix.lower() in SUFFIXES and not path.name.startswith(".")


def read_image(path: Path) -> NDArray[np.uint8]:
    """Decode one file to uint8 (h, w) or (h, w, 3); `UnreadableImage` names the file that cannot be read."""
    try:
        # A pipe or a device would be waited for.
        if path.exists() and not path.is_file():
            raise UnreadableImage(path, "not a plain file")
        raw = path.read_bytes()
    except OSError as error:
        raise UnreadableImage(path, error.strerror or str(error)) from error
    return decode_image(raw, str(path))


def decode_image(raw: bytes, name: str) -> NDArray[np.uint8]:
    """Decode the bytes of one image to uint8 (h, w) or (h, w, 3).

    The EXIF orientation is applied. Greyscale and black-and-white stay (h, w); 16-bit greyscale is divided by 257, so
    that its full range maps to 0..255. Palette, CMYK and other colour images become RGB. Transparent pixels are laid
    on white, as a browser shows them. Of an animation the first frame is taken. DICOM is told by its content and goes
    through `decode_dicom`.

    Raises:
        UnreadableImage: in one line with `name`, for broken bytes, an unknown format, 32-bit pixels, whose range no
            file states, more than `MAX_PIXELS` pixels, or a side more than `MAX_RATIO` times the other.
    """
    try:
        # What is wrong is an error, or of no consequence: nobody reads a decoder's remarks on one image in a thousand.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if is_dicom(raw):
                return decode_dicom(raw, _check_size)
            with Image.open(io.BytesIO(raw), formats=_FORMATS) as opened:
                _check_size(opened.width, opened.height)
                return _to_array(ImageOps.exif_transpose(opened))
    # Broken bytes make the decoders raise nearly anything (OSError, SyntaxError, ValueError, struct.error, ...).
    except Exception as error:
        reason = shown(" ".join(str(error).split())) or type(error).__name__
        if isinstance(error, UnidentifiedImageError):
            reason = "not an image in a known format" if raw else "the file is empty"
        raise UnreadableImage(name, reason) from error


def _check_size(width: int, height: int) -> None:
    """Before anything is decoded: a file of a few kilobytes can declare more pixels than there is memory."""
    if width * height > MAX_PIXELS:
        raise ValueError(f"{width} x {height} is more than {MAX_PIXELS:,} pixels")
    if max(width, height) > MAX_RATIO * min(width, height):
        raise ValueError(f"{width} x {height}: one side is more than {MAX_RATIO} times the other")


def _to_array(image: Image.Image) -> NDArray[np.uint8]:
    mode = image.mode
    if mode in ("I", "F"):
        raise ValueError(f"32-bit pixels (mode {mode}) have no stated range, convert it to 8 or 16 bits")
    if mode.startswith("I;16"):
        wide = np.asarray(image).astype(np.uint32)
        return ((wide + 128) // 257).astype(np.uint8)
    if mode in ("1", "L") and "transparency" not in image.info:
        return np.array(image.convert("L"), dtype=np.uint8)
    if image.has_transparency_data:
        grey = mode in ("1", "L", "LA", "La")
        layered = image.convert("RGBA")
        paper = Image.new("RGBA", layered.size, "white")
        image = Image.alpha_composite(paper, layered).convert("L" if grey else "RGB")
        return np.array(image, dtype=np.uint8)
    return np.array(image.convert("RGB"), dtype=np.uint8)
