"""Small image files and folders of them, for the tests of data."""

from __future__ import annotations

import io

import numpy as np
from PIL import Image


def encoded(image, kind="PNG", **options):
    """The bytes of a Pillow image in a file format."""
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def picture(seed, size=(12, 10)):
    """Pixels that differ for every seed, greyscale (height, width), as PNG bytes (lossless)."""
    return encoded(Image.fromarray(np.random.default_rng(seed).integers(0, 256, size, dtype=np.uint8)))


def write(root, files):
    """`files`: relative path -> bytes."""
    for name, raw in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(raw)
    return root


def dicom(pixels, space="MONOCHROME2", **elements):
    """A DICOM file, explicit VR little endian, of unsigned or signed pixels (h, w) or (h, w, 3), as bytes.

    `elements` are further ones of group 0028 by keyword, such as WindowCenter="40".
    """
    rows, columns = pixels.shape[:2]
    size, signed = 8 * pixels.itemsize, int(pixels.dtype.kind == "i")
    numbers = {
        0x0002: 1 if pixels.ndim == 2 else 3,
        0x0006: 0,
        0x0010: rows,
        0x0011: columns,
        0x0100: size,
        0x0101: elements.pop("BitsStored", size),
        0x0102: size - 1,
        0x0103: signed,
    }
    coded = [(0x28, at, b"US\x02\0" + value.to_bytes(2, "little")) for at, value in numbers.items()]
    texts = {0x0004: ("CS", space)} | {
        DICOM_TEXTS[name][1]: (DICOM_TEXTS[name][0], text) for name, text in elements.items()
    }
    for at, (kind, text) in texts.items():
        coded.append((0x28, at, _text(kind, text)))
    raw = pixels.astype(pixels.dtype.newbyteorder("<")).tobytes()
    raw += b"\0" * (len(raw) % 2)
    coded.append((0x7FE0, 0x0010, b"OW\0\0" + len(raw).to_bytes(4, "little") + raw))
    meta = [
        (2, 0x0002, _text("UI", "1.2.840.10008.5.1.4.1.1.7")),
        (2, 0x0003, _text("UI", "1.2.3")),
        (2, 0x0010, _text("UI", "1.2.840.10008.1.2.1")),
    ]
    body = b"".join(_tag(*element) for element in meta)
    meta_length = _tag(2, 0, b"UL\x04\0" + len(body).to_bytes(4, "little"))
    return b"\0" * 128 + b"DICM" + meta_length + body + b"".join(_tag(*element) for element in sorted(coded))


DICOM_TEXTS = {
    "NumberOfFrames": ("IS", 0x0008),
    "WindowCenter": ("DS", 0x1050),
    "WindowWidth": ("DS", 0x1051),
    "RescaleIntercept": ("DS", 0x1052),
    "RescaleSlope": ("DS", 0x1053),
    "VOILUTFunction": ("CS", 0x1056),
}


def _text(kind, text):
    padding = "\0" if kind == "UI" else " "
    raw = (text + padding * (len(text) % 2)).encode()
    return kind.encode() + len(raw).to_bytes(2, "little") + raw


def _tag(group, element, rest):
    return group.to_bytes(2, "little") + element.to_bytes(2, "little") + rest
