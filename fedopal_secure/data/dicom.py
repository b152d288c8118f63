"""DICOM files to uint8 arrays, as a viewer would show them first; pydicom (the extra `dicom`) reads the file."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

_MAGIC: Final = slice(128, 132)  # after a preamble of 128 bytes; DICOM PS3.10 section 7.1


def is_dicom(raw: bytes) -> bool:
    """True for the bytes of a DICOM file, whatever its name."""
    return raw[_MAGIC] == b"DICM"


def decode_dicom(raw: bytes, check_size: Callable[[int, int], None]) -> NDArray[np.uint8]:
    """Decode one DICOM image to uint8 (h, w), or (h, w, 3) where it is in colour.

    Greyscale: the modality LUT or rescale is applied, then the first window that the file states (its function, LINEAR
    unless it says otherwise, PS3.3 C.11.2.1), else its VOI LUT, else the full range from the smallest to the largest
    value of this image; the result spans 0..255. MONOCHROME1 is inverted, so that larger values are brighter in all.
    Colour: RGB, YBR and palettes become RGB of 8 bits, by the bits stored.

    Args:
        raw: the file.
        check_size: called with width and height before pixels are decoded; raises for sizes that are refused.

    Raises:
        ValueError: pydicom is missing, no pixels, several frames, or a colour space that is none of these; pydicom's
            own errors for what it cannot read.
    """
    try:
        import pydicom
        from pydicom.pixels import apply_color_lut, apply_modality_lut, apply_voi, pixel_array
    except ImportError as error:
        raise ValueError('DICOM needs pydicom: pip install "fedopal-secure[dicom]"') from error
    file = pydicom.dcmread(io.BytesIO(raw))
    if not any(name in file for name in ("PixelData", "FloatPixelData", "DoubleFloatPixelData")):
        raise ValueError("a DICOM file without pixels")
    frames = int(file.get("NumberOfFrames") or 1)
    if frames > 1:
        raise ValueError(f"a DICOM file of {frames} frames: write those that are meant to single images")
    check_size(int(file.Columns), int(file.Rows))
    space = str(file.PhotometricInterpretation)
    pixels = pixel_array(file)
    if space == "PALETTE COLOR":
        coloured = apply_color_lut(pixels, file)[..., :3]
        return _span(coloured, 0, np.iinfo(coloured.dtype).max)
    if pixels.ndim == 3 and (space == "RGB" or space.startswith("YBR")):
        return _span(pixels, 0, 2 ** int(file.BitsStored) - 1)
    if space not in ("MONOCHROME1", "MONOCHROME2"):
        raise ValueError(f"the DICOM colour space {space} is not supported")
    values = apply_modality_lut(pixels, file)
    if file.get("WindowWidth") is not None and file.get("WindowCenter") is not None:
        grey = _window(values, file)
    elif file.get("VOILUTSequence"):
        grey = _span(apply_voi(values, file), 0, 2 ** int(file.VOILUTSequence[0].LUTDescriptor[2]) - 1)
    else:
        grey = _span(values, values.min(), values.max())
    return np.asarray(255 - grey) if space == "MONOCHROME1" else grey


def _window(values: NDArray[Any], file: Any) -> NDArray[np.uint8]:
    centre, width = (float(np.atleast_1d(file[name].value)[0]) for name in ("WindowCenter", "WindowWidth"))
    function = str(file.get("VOILUTFunction") or "LINEAR").upper()
    if width <= 0 or (width < 1 and function == "LINEAR"):
        raise ValueError(f"a DICOM window of width {width:g}")
    if function == "SIGMOID":
        return _span(1 / (1 + np.exp(-4 * (values - centre) / width)), 0, 1)
    if function == "LINEAR_EXACT":
        return _span(values, centre - width / 2, centre + width / 2)
    if function == "LINEAR":
        return _span(values, centre - width / 2, centre + width / 2 - 1)
    raise ValueError(f"the DICOM window function {function} is not supported")


def _span(values: NDArray[Any], low: float, high: float) -> NDArray[np.uint8]:
    """`low` and below become 0, `high` and above 255; where the two are equal it is a step."""
    wide = values.astype(np.float64)
    share = (wide - low) / (high - low) if high > low else (wide > low).astype(np.float64)
    return np.rint(255 * np.clip(share, 0, 1)).astype(np.uint8)
