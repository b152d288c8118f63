"""DICOM files: windows, rescaling, inversion and colour by the standard's formulas, and a one-line reason for the rest.

The same files go through pydicom where it is installed, and through a stand-in that reads just these files, so that
what we make of the elements is tested without it.
"""

from __future__ import annotations

import io
import sys
import types

import numpy as np
import pytest

from fedopal_secure.core.errors import InputError
from fedopal_secure.data.images import decode_image
from tests.data.folders import DICOM_TEXTS, dicom

SHORTS = {
    0x0010: "Rows",
    0x0011: "Columns",
    0x0100: "BitsAllocated",
    0x0101: "BitsStored",
    0x0103: "PixelRepresentation",
}
TEXTS = {at: name for name, (_, at) in DICOM_TEXTS.items()} | {0x0004: "PhotometricInterpretation"}


class File(dict):
    """The elements of a file by keyword, with the part of pydicom's Dataset that is used."""

    __getattr__ = dict.__getitem__

    def __getitem__(self, name):
        return types.SimpleNamespace(value=dict.__getitem__(self, name))


def dcmread(file):
    raw, at, found = file.read(), 132, File()
    while at < len(raw):
        group, element = (int.from_bytes(raw[at + i : at + i + 2], "little") for i in (0, 2))
        start = at + 12 if raw[at + 4 : at + 6] == b"OW" else at + 8
        length = int.from_bytes(raw[at + 6 : at + 8] if start == at + 8 else raw[at + 8 : at + 12], "little")
        value, at = raw[start : start + length], start + length
        if group == 0x7FE0:
            found["PixelData"] = value
        elif group == 0x28 and element in SHORTS:
            found[SHORTS[element]] = int.from_bytes(value, "little")
        elif group == 0x28 and element in TEXTS:
            text = value.decode().strip()
            found[TEXTS[element]] = text.split("\\") if "\\" in text else text
    return found


def pixel_array(file):
    kind = f"<{'ui'[file.PixelRepresentation]}{file.BitsAllocated // 8}"
    shape = (file.Rows, file.Columns)
    flat = np.frombuffer(file.PixelData, kind)
    return (
        flat[: np.prod(shape)].reshape(shape)
        if flat.size < 3 * np.prod(shape)
        else flat[: 3 * np.prod(shape)].reshape(*shape, 3)
    )


def apply_modality_lut(pixels, file):
    return pixels * float(file.RescaleSlope) + float(file.RescaleIntercept) if "RescaleSlope" in file else pixels


@pytest.fixture(params=["pydicom", "stand-in"])
def reader(request, monkeypatch):
    if request.param == "pydicom":
        pytest.importorskip("pydicom")
        return
    pydicom, pixels = types.ModuleType("pydicom"), types.ModuleType("pydicom.pixels")
    pydicom.dcmread, pydicom.pixels = dcmread, pixels
    pixels.pixel_array, pixels.apply_modality_lut = pixel_array, apply_modality_lut
    pixels.apply_voi = pixels.apply_color_lut = None
    monkeypatch.setitem(sys.modules, "pydicom", pydicom)
    monkeypatch.setitem(sys.modules, "pydicom.pixels", pixels)


RAMP = np.array([[0, 1000, 2000, 3000, 4000, 4095]], dtype=np.uint16)
pytestmark = pytest.mark.usefixtures("reader")


def decoded(pixels, space="MONOCHROME2", **elements):
    return decode_image(dicom(pixels, space, **elements), "scan.dcm")


def test_without_a_window_the_full_range_of_the_image_is_shown():
    array = decoded(RAMP + 100)
    assert array.dtype == np.uint8 and array.tolist() == [[0, 62, 125, 187, 249, 255]]


def test_monochrome1_is_inverted():
    assert np.array_equal(decoded(RAMP, "MONOCHROME1"), 255 - decoded(RAMP))


def test_signed_pixels():
    assert decoded(np.array([[-1000, 0, 1000]], dtype=np.int16)).tolist() == [[0, 128, 255]]


def test_a_constant_image_is_black():
    assert decoded(np.full((2, 2), 7, dtype=np.uint8)).tolist() == [[0, 0], [0, 0]]


# PS3.3 C.11.2.1.2.1: c = 2048, w = 4096 maps 0 to the least and 4095 to the largest value.
@pytest.mark.parametrize(
    ("centre", "width", "function", "values"),
    [
        ("2048", "4096", None, [0, 62, 125, 187, 249, 255]),
        ("2000", "2001", None, [0, 0, 128, 255, 255, 255]),
        ("2000\\40", "2001\\400", None, [0, 0, 128, 255, 255, 255]),
        ("2000.5", "1", None, [0, 0, 0, 255, 255, 255]),
        ("2000", "2000", "LINEAR_EXACT", [0, 0, 128, 255, 255, 255]),
        ("2000", "1000", "SIGMOID", [0, 5, 128, 250, 255, 255]),
    ],
)
def test_the_first_window_of_the_file_is_used(centre, width, function, values):
    more = {} if function is None else {"VOILUTFunction": function}
    array = decoded(RAMP, WindowCenter=centre, WindowWidth=width, **more)
    assert array.tolist() == [pytest.approx(values, abs=1)]


def test_the_window_is_in_units_after_rescaling():
    # Hounsfield units: the soft tissue window from -160 to 240.
    stored = np.array([[0, 864, 1064, 1264, 4000]], dtype=np.uint16)
    array = decoded(stored, RescaleSlope="1", RescaleIntercept="-1024", WindowCenter="40", WindowWidth="400")
    assert array.tolist() == [[0, 0, 128, 255, 255]]


def test_colour():
    pixels = np.arange(24, dtype=np.uint8).reshape(2, 4, 3)
    assert np.array_equal(decoded(pixels, "RGB"), pixels)


@pytest.mark.parametrize(
    ("elements", "says"),
    [
        ({"NumberOfFrames": "3"}, "a DICOM file of 3 frames"),
        ({"WindowCenter": "40", "WindowWidth": "0"}, "a DICOM window of width 0"),
        (
            {"WindowCenter": "40", "WindowWidth": "9", "VOILUTFunction": "CUBIC"},
            "window function CUBIC is not supported",
        ),
        ({"space": "ARGB"}, "colour space ARGB is not supported"),
    ],
)
def test_what_is_refused(elements, says):
    pixels = (
        np.zeros((3, 4), dtype=np.uint16) if "NumberOfFrames" not in elements else np.zeros((4, 4), dtype=np.uint16)
    )
    with pytest.raises(InputError, match=says) as caught:
        decoded(pixels, **elements)
    assert "\n" not in str(caught.value) and "scan.dcm" in str(caught.value)


def test_no_pixels_and_too_many():
    whole = dicom(RAMP)
    with pytest.raises(InputError, match="a DICOM file without pixels"):
        decode_image(whole[: whole.index(b"\xe0\x7f")], "scan.dcm")
    huge = whole.replace(b"\x28\0\x10\0US\x02\0\x01\0", b"\x28\0\x10\0US\x02\0\xff\xff")
    huge = huge.replace(b"\x28\0\x11\0US\x02\0\x06\0", b"\x28\0\x11\0US\x02\0\xff\xff")
    with pytest.raises(InputError, match="65535 x 65535 is more than"):
        decode_image(huge, "scan.dcm")


def test_its_name_does_not_matter():
    assert np.array_equal(decode_image(dicom(RAMP), "IM000001"), decoded(RAMP))


def test_without_pydicom_the_file_says_what_it_needs(monkeypatch):
    monkeypatch.setitem(sys.modules, "pydicom", None)
    with pytest.raises(InputError, match=r'DICOM needs pydicom: pip install "fedopal-secure\[dicom\]"'):
        decoded(RAMP)


# ---- what only pydicom itself can write ----


@pytest.fixture
def saved():
    """Change a file with pydicom and give its bytes."""
    pydicom = pytest.importorskip("pydicom")

    def change(raw, edit):
        file, out = pydicom.dcmread(io.BytesIO(raw)), io.BytesIO()
        edit(pydicom, file)
        file.save_as(out)
        return out.getvalue()

    return change


@pytest.mark.parametrize("reader", ["pydicom"], indirect=True)
def test_voi_lut_where_there_is_no_window(saved):
    def edit(pydicom, file):
        item = pydicom.Dataset()
        item.add_new("LUTDescriptor", "US", [4, 0, 12])
        item.add_new("LUTData", "US", [4095, 2048, 1024, 0])
        file.VOILUTSequence = [item]

    raw = saved(dicom(np.array([[0, 1, 2, 3, 9]], dtype=np.uint16)), edit)
    assert decode_image(raw, "x").tolist() == [[255, 128, 64, 0, 0]]


@pytest.mark.parametrize("reader", ["pydicom"], indirect=True)
def test_palette(saved):
    def edit(pydicom, file):
        for colour, values in (("Red", [65535, 0, 0]), ("Green", [0, 65535, 0]), ("Blue", [0, 0, 32896])):
            file.add_new(f"{colour}PaletteColorLookupTableDescriptor", "US", [3, 0, 16])
            file.add_new(f"{colour}PaletteColorLookupTableData", "OW", np.array(values, dtype="<u2").tobytes())

    raw = saved(dicom(np.array([[0, 1, 2]], dtype=np.uint8), "PALETTE COLOR"), edit)
    assert decode_image(raw, "x").tolist() == [[[255, 0, 0], [0, 255, 0], [0, 0, 128]]]


@pytest.mark.parametrize("reader", ["pydicom"], indirect=True)
def test_ybr_becomes_rgb(reader):
    # Y, Cb, Cr of pure red in ITU-R BT.601, full range.
    pixels = np.array([[[76, 85, 255]] * 2], dtype=np.uint8)
    assert decoded(pixels, "YBR_FULL").tolist() == [[pytest.approx([255, 0, 0], abs=2)] * 2]
