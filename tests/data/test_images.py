"""Decoding: every colour mode, orientation and depth gives the sensible uint8 array, broken files a one-line error."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

from fedopal_secure.core.errors import InputError
from fedopal_secure.data.images import decode_image, is_image_name, read_image

RED, GREEN, BLUE, WHITE = (255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 255)


def encoded(image, kind="PNG", **options):
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def decoded(image, kind="PNG", **options):
    return decode_image(encoded(image, kind, **options), "picture")


@pytest.fixture
def corners():
    """3 wide, 2 high, red at the upper left, green at the upper right, blue below, white elsewhere."""
    image = Image.new("RGB", (3, 2), WHITE)
    for at, colour in (((0, 0), RED), ((2, 0), GREEN), ((0, 1), BLUE)):
        image.putpixel(at, colour)
    return image


def test_rgb(corners):
    array = decoded(corners)
    assert array.dtype == np.uint8 and array.shape == (2, 3, 3)
    assert array[0, 0].tolist() == list(RED) and array[0, 2].tolist() == list(GREEN)
    assert array.flags.writeable


def test_grey_stays_two_dimensional():
    values = np.arange(12, dtype=np.uint8).reshape(3, 4) * 20
    assert np.array_equal(decoded(Image.fromarray(values)), values)


def test_black_and_white():
    assert decoded(Image.new("1", (2, 1), 1)).tolist() == [[255, 255]]


@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
def test_sixteen_bits_keep_their_full_range(kind):
    wide = np.array([[0, 257, 32768, 65535]], dtype=np.uint16)
    assert decoded(Image.fromarray(wide), kind).tolist() == [[0, 1, 128, 255]]


@pytest.mark.parametrize("dtype", [np.int32, np.float32])
def test_32_bits_are_refused_and_say_what_to_do(dtype):
    with pytest.raises(InputError, match=r"picture: 32-bit pixels .* convert it to 8 or 16 bits"):
        decoded(Image.fromarray(np.zeros((2, 2), dtype=dtype)), "TIFF")


def test_palette(corners):
    array = decoded(corners.quantize(8), "GIF")
    assert array.shape == (2, 3, 3) and array[0, 0].tolist() == list(RED)


def test_transparent_palette_lies_on_white(corners):
    paletted = corners.quantize(8)
    blue = paletted.getpixel((0, 1))
    array = decoded(paletted, "PNG", transparency=blue)
    assert array[1, 0].tolist() == list(WHITE) and array[0, 0].tolist() == list(RED)


def test_alpha_lies_on_white(corners):
    image = corners.convert("RGBA")
    image.putpixel((0, 0), (*RED, 0))
    image.putpixel((2, 0), (0, 0, 0, 128))
    array = decoded(image)
    assert array[0, 0].tolist() == list(WHITE)
    assert array[0, 2].tolist() == pytest.approx([127] * 3, abs=1)


def test_grey_with_alpha_stays_grey():
    image = Image.new("LA", (2, 1), (10, 255))
    image.putpixel((1, 0), (10, 0))
    assert decoded(image).tolist() == [[10, 255]]


def test_cmyk():
    array = decoded(Image.new("CMYK", (8, 8), (0, 255, 255, 0)), "JPEG", quality=95)
    assert array.shape == (8, 8, 3)
    assert np.all(array[..., 0] > 230) and np.all(array[..., 1:] < 25)


@pytest.mark.parametrize(("orientation", "red_at"), [(1, (0, 0)), (2, (0, 2)), (3, (1, 2)), (6, (0, 1)), (8, (2, 0))])
def test_exif_orientation_is_applied(corners, orientation, red_at):
    exif = Image.Exif()
    exif[0x0112] = orientation
    array = decoded(corners, "PNG", exif=exif)
    assert array.shape == ((3, 2, 3) if orientation > 4 else (2, 3, 3))
    assert array[red_at].tolist() == list(RED)


def test_first_frame_of_an_animation():
    frames = [Image.new("RGB", (2, 2), RED), Image.new("RGB", (2, 2), BLUE)]
    assert decoded(frames[0], "GIF", save_all=True, append_images=frames[1:])[0, 0].tolist() == list(RED)


# MPO, several JPEGs in one file, is what many cameras write under the name .jpg.
@pytest.mark.parametrize("kind", ["BMP", "WEBP", "TIFF", "JPEG", "MPO"])
def test_other_formats(kind):
    assert decoded(Image.new("RGB", (8, 8), WHITE), kind).tolist() == np.full((8, 8, 3), 255).tolist()


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        (b"", "the file is empty"),
        (b"this is no image", "not an image in a known format"),
        (encoded(Image.effect_noise((64, 64), 50))[:200], "unreadable image scan.png"),
        (encoded(Image.effect_noise((64, 64), 50), "JPEG")[:400], "unreadable image scan.png"),
    ],
)
def test_broken_bytes_name_the_file_in_one_line(raw, says):
    with pytest.raises(InputError, match=says) as caught:
        decode_image(raw, "scan.png")
    assert "\n" not in str(caught.value) and "scan.png" in str(caught.value)


def test_rare_formats_are_not_opened():
    # The same picture opens once its format is among the ones we allow: the refusal is about the format.
    with pytest.raises(InputError, match="not an image in a known format"):
        decoded(Image.new("RGB", (4, 4)), "PPM")
    assert decoded(Image.new("RGB", (4, 4)), "PNG").shape == (4, 4, 3)


def test_missing_file_and_folder_are_named(tmp_path):
    with pytest.raises(InputError, match=r"gone\.png"):
        read_image(tmp_path / "gone.png")
    with pytest.raises(InputError, match="not a plain file"):
        read_image(tmp_path)


def test_a_side_of_a_hundred_times_the_other_is_the_most():
    assert decoded(Image.new("L", (100, 1))).shape == (1, 100)
    for size in ((101, 1), (2, 201)):
        with pytest.raises(InputError, match="one side is more than 100 times the other"):
            decoded(Image.new("L", size))


def test_no_decoder_warns_on_standard_error(corners, recwarn):
    decoded(corners.convert("P"), "PNG", transparency=b"\0\xff")  # Pillow warns of such a palette
    assert not recwarn.list


@pytest.mark.parametrize("kind", ["JPEG", "TIFF", "WEBP"])
def test_exif_orientation_of_other_formats(kind):
    exif = Image.Exif()
    exif[0x0112] = 6
    array = decoded(Image.new("RGB", (32, 16), RED), kind, exif=exif)
    assert array.shape == (32, 16, 3)


def test_image_names():
    assert is_image_name("a/b.JPG") and is_image_name("c.tiff") and is_image_name("IM1.DCM")
    assert not is_image_name("a/._b.jpg") and not is_image_name("notes.txt") and not is_image_name(".jpg")
