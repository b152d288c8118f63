"""The public feature map: one row depends on that row alone, its digest on all of it, and junk is refused."""

from __future__ import annotations

import dataclasses
import os
import re
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from fedopal_secure.core.errors import InputError, MisuseError
from fedopal_secure.encoding import feature_map
from fedopal_secure.encoding.feature_map import FeatureMap
from fedopal_secure.encoding.grid import FeatureGrid

WIDTH, AXES = 20, 6


def public_features(seed: int = 0, n: int = 300, width: int = WIDTH) -> np.ndarray:
    rng = np.random.default_rng(seed)
    spread = np.geomspace(3, 0.2, width)
    return (
        5 + (rng.standard_normal((n, width)) * spread) @ np.linalg.qr(rng.standard_normal((width, width)))[0]
    ).astype(np.float32)


@pytest.fixture(scope="module")
def public_map() -> FeatureMap:
    return FeatureMap.from_public_features(public_features(), AXES)


# one row at a time


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 60), st.integers(1, 40), st.integers(1, 600), st.integers(0, 2**32))
def test_a_row_depends_on_that_row_alone(width: int, axes: int, rows: int, seed: int) -> None:
    """Bit for bit, alone and among any number of others, in any memory order."""
    rng = np.random.default_rng(seed)
    basis = rng.standard_normal((width, axes)).astype(np.float32)
    mapping = FeatureMap(rng.standard_normal(width).astype(np.float32), basis, np.eye(axes))
    features = rng.standard_normal((rows, width)).astype(np.float32)
    together = mapping.apply(features)
    assert together.dtype == np.float64 and together.shape == (rows, axes)
    row = int(rng.integers(rows))
    cut = int(rng.integers(rows + 1))
    assert mapping.apply(features[row : row + 1]).tobytes() == together[row : row + 1].tobytes()
    parts = [mapping.apply(part) for part in (features[:cut], features[cut:]) if len(part)]
    assert np.concatenate(parts).tobytes() == together.tobytes()
    assert mapping.apply(np.asfortranarray(features)).tobytes() == together.tobytes()


def test_a_matrix_product_would_depend_on_the_batch() -> None:
    """Control: with BLAS in its place, a row differs with the number of rows, so the test above can fail."""
    rng = np.random.default_rng(0)
    basis, features = rng.standard_normal((384, 100)), rng.standard_normal((600, 384))
    together = features @ basis
    if all(np.array_equal(features[i : i + 1] @ basis, together[i : i + 1]) for i in range(50)):
        pytest.skip("this BLAS rounds alike for every number of rows")
    mapping = FeatureMap(np.zeros(384, np.float32), basis.astype(np.float32), np.eye(100))
    ours = mapping.apply(features)
    assert all(np.array_equal(mapping.apply(features[i : i + 1]), ours[i : i + 1]) for i in range(50))


def test_blocks_do_not_show(public_map: FeatureMap, monkeypatch: pytest.MonkeyPatch) -> None:
    features = public_features(1, 700)
    reference = public_map.apply(features)
    monkeypatch.setattr(feature_map, "_BLOCK_ROWS", 3)
    assert public_map.apply(features).tobytes() == reference.tobytes()


def test_the_order_of_the_sum_is_the_one_that_is_promised() -> None:
    """From the first coordinate to the last, rounded after each product and each sum: another order shows."""
    features = np.array([[1e16, 1.0, -1e16, 1.0]])
    mapping = FeatureMap(np.zeros(4, np.float32), np.ones((4, 1), np.float32), np.eye(1))
    assert mapping.apply(features).tolist() == [[1.0]]  # (1e16 + 1) - 1e16 + 1, and 1e16 + 1 rounds to 1e16
    third = np.float64(np.float32(1 / 3))
    once = FeatureMap(np.zeros(1, np.float32), np.full((1, 1), 1 / 3, np.float32), np.eye(1))
    assert Fraction(float(once.apply(np.array([[0.1]]))[0, 0])) == Fraction(float(np.float64(0.1) * third))


def test_the_identity_subtracts_the_centre() -> None:
    features = public_features()
    mapping = FeatureMap.centring(features)
    assert mapping.basis is None
    assert (mapping.features, mapping.dimension) == (WIDTH, WIDTH)
    assert np.array_equal(mapping.apply(features), features.astype(np.float64) - mapping.centre)


# from public features


def test_axes_are_principal_and_partly_whitened(public_map: FeatureMap) -> None:
    public = public_features()
    variances = np.linalg.eigvalsh(np.cov(public, rowvar=False, bias=True))[::-1][:AXES]
    mapped = public_map.apply(public)
    assert np.abs(mapped.mean(axis=0)).max() < 1e-5
    covariance = mapped.T @ mapped / len(mapped)
    expected = np.sqrt(variances) / np.sqrt(variances).sum()  # variance ** (1 - 2 * 1/4), scaled to sum to 1
    np.testing.assert_allclose(covariance, np.diag(expected), atol=1e-5)


@pytest.mark.parametrize(("whitening", "power"), [(0.0, 1.0), (0.5, 0.0)])
def test_the_ends_of_whitening(whitening: float, power: float) -> None:
    public = public_features()
    mapped = FeatureMap.from_public_features(public, AXES, whitening).apply(public)
    variances = np.linalg.eigvalsh(np.cov(public, rowvar=False, bias=True))[::-1][:AXES] ** power
    np.testing.assert_allclose(np.square(mapped).mean(axis=0), variances / variances.sum(), rtol=1e-4)


def test_the_second_moment_is_that_of_what_the_grid_returns(public_map: FeatureMap) -> None:
    h = FeatureGrid(AXES).normalised(public_map.apply(public_features()))
    np.testing.assert_allclose(public_map.second_moment, h.T @ h / len(h), atol=1e-6)
    assert np.trace(public_map.second_moment) == pytest.approx(1)


def test_leading_axes_are_those_of_a_smaller_map() -> None:
    public = public_features()
    cut = FeatureMap.from_public_features(public, 12).leading(5)
    small = FeatureMap.from_public_features(public, 5)
    grid = FeatureGrid(5)
    np.testing.assert_allclose(
        grid.normalised(cut.apply(public)), grid.normalised(small.apply(public)), rtol=1e-5, atol=1e-6
    )
    assert np.trace(cut.second_moment) == pytest.approx(1)
    assert cut.dimension == 5 and cut.features == WIDTH


def test_all_axes_are_those_that_the_features_span() -> None:
    public = public_features()
    public[:, 3] = public[:, 4]
    assert FeatureMap.from_public_features(public).dimension == WIDTH - 1
    with pytest.raises(InputError, match="span 19"):
        FeatureMap.from_public_features(public, WIDTH)


def test_equal_features_give_equal_maps() -> None:
    first, second = (FeatureMap.from_public_features(public_features(), AXES) for _ in range(2))
    assert first.digest() == second.digest()


@pytest.mark.parametrize(
    ("features", "dimensions", "whitening", "message"),
    [
        (np.ones((1, 4)), 2, 0.25, "two or more"),
        (np.ones(4), 2, 0.25, "two or more"),
        (np.ones((9, 0)), None, 0.25, "two or more"),
        (np.full((9, 4), np.nan), 2, 0.25, "two or more"),
        (np.ones((9, 4)), 1, 0.25, "span 0"),
        (np.random.default_rng(0).standard_normal((9, 4)), 5, 0.25, "span 4"),
        (np.random.default_rng(0).standard_normal((9, 4)), 0, 0.25, "span 4"),
        (np.random.default_rng(0).standard_normal((3, 40)), 3, 0.25, "span 2"),
        (np.random.default_rng(0).standard_normal((9, 4)), 2, 0.6, "whitening"),
        (np.random.default_rng(0).standard_normal((9, 4)), 2, float("nan"), "whitening"),
    ],
)
def test_features_that_make_no_map_are_refused(
    features: np.ndarray, dimensions: int | None, whitening: float, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        FeatureMap.from_public_features(features, dimensions, whitening)


def test_no_axes_to_choose_from() -> None:
    with pytest.raises(InputError, match="0 axes"):
        FeatureMap.centring(public_features()).leading(2)
    with pytest.raises(InputError, match="6 axes"):
        FeatureMap.from_public_features(public_features(), AXES).leading(AXES + 1)
    with pytest.raises(InputError, match="finite"):
        FeatureMap.centring(np.full((2, 3), np.inf))


# what apply refuses


def test_rows_that_are_not_finite_are_named(public_map: FeatureMap) -> None:
    features = public_features()
    features[7, 2] = np.inf
    with pytest.raises(InputError, match="row 7"):
        public_map.apply(features)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_what_overflows_is_refused_by_the_grid(sign: float) -> None:
    mapping = FeatureMap(np.zeros(2, np.float32), np.array([[1, 1], [1, sign]], np.float32), np.eye(2))
    mapped = mapping.apply(np.full((2, 2), 1.7e308))
    with pytest.raises(InputError, match="row 0"):
        FeatureGrid(2).quantise(mapped)


@pytest.mark.parametrize("shape", [(WIDTH,), (3, WIDTH + 1)])
def test_features_of_another_width_are_misuse(public_map: FeatureMap, shape: tuple[int, ...]) -> None:
    with pytest.raises(MisuseError, match=r"\(n, 20\)"):
        public_map.apply(np.zeros(shape))


@pytest.mark.parametrize(
    ("centre", "basis", "moment"),
    [
        (np.zeros(3, np.float64), None, np.eye(3)),
        (np.zeros(3, np.float32), None, np.eye(2)),
        (np.zeros(3, np.float32), np.zeros((3, 2), np.float32), np.eye(3)),
        (np.zeros(3, np.float32), np.zeros((2, 2), np.float32), np.eye(2)),
        (np.zeros(3, np.float32), np.zeros((3, 2)), np.eye(2)),
        (np.zeros(3, np.float32), None, np.triu(np.ones((3, 3)))),
        (np.full(3, np.nan, np.float32), None, np.eye(3)),
        (np.zeros(0, np.float32), None, np.zeros((0, 0))),
        (np.zeros((3, 1), np.float32), None, np.eye(3)),
    ],
)
def test_arrays_that_do_not_fit_are_misuse(centre: np.ndarray, basis: np.ndarray | None, moment: np.ndarray) -> None:
    with pytest.raises(MisuseError, match="centre float32"):
        FeatureMap(centre, basis, moment)


# digest and files


def test_the_digest_is_of_everything(public_map: FeatureMap) -> None:
    assert len(public_map.digest()) == 32
    seen = {public_map.digest(), FeatureMap.centring(public_features()).digest()}
    for name in ("centre", "basis", "second_moment"):
        changed = getattr(public_map, name).copy()
        changed.flat[0] = np.nextafter(changed.flat[0], changed.dtype.type(9))
        seen.add(dataclasses.replace(public_map, **{name: changed}).digest())
    assert len(seen) == 5


def test_shapes_are_part_of_the_digest() -> None:
    """The same bytes in other shapes, 1 x 4 and 2 x 2 after equal centres, are another map."""
    moments = np.zeros((4, 4)), np.zeros((2, 2))
    wide = FeatureMap(np.zeros(1, np.float32), np.zeros((1, 4), np.float32), moments[0])
    tall = FeatureMap(np.zeros(2, np.float32), np.zeros((2, 2), np.float32), moments[1])
    assert wide.digest() != tall.digest()
    identity = FeatureMap(np.zeros(2, np.float32), None, moments[1])
    assert identity.digest() != tall.digest()


def test_the_digest_is_the_same_in_another_process_and_memory_order(public_map: FeatureMap, tmp_path: Path) -> None:
    path = tmp_path / "map.safetensors"
    public_map.save(path)
    program = (
        "import sys; from pathlib import Path; from fedopal_secure.encoding.feature_map import FeatureMap;"
        "print(FeatureMap.load(Path(sys.argv[1])).digest().hex())"
    )
    environment = os.environ | {"PYTHONHASHSEED": "7"}
    command = [sys.executable, "-c", program, str(path)]
    shown = subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout.strip()
    assert shown == public_map.digest().hex()
    assert public_map.basis is not None
    turned = dataclasses.replace(public_map, basis=np.asfortranarray(public_map.basis))
    assert turned.digest() == public_map.digest()
    turned.save(tmp_path / "turned.safetensors")
    assert (tmp_path / "turned.safetensors").read_bytes() == path.read_bytes()


@pytest.mark.parametrize("with_basis", [True, False])
def test_saved_maps_come_back(with_basis: bool, tmp_path: Path) -> None:
    public = public_features()
    mapping = FeatureMap.from_public_features(public, AXES) if with_basis else FeatureMap.centring(public)
    mapping.save(tmp_path / "map.safetensors")
    again = FeatureMap.load(tmp_path / "map.safetensors")
    assert again.digest() == mapping.digest()
    assert again.apply(public).tobytes() == mapping.apply(public).tobytes()


@pytest.mark.parametrize("junk", [b"", b"junk", b"\xff" * 100, b"\x08\x00\x00\x00\x00\x00\x00\x00{}      "])
def test_junk_is_refused(junk: bytes, tmp_path: Path) -> None:
    path = tmp_path / "map.safetensors"
    path.write_bytes(junk)
    with pytest.raises(InputError, match=r"map\.safetensors: not a feature map"):
        FeatureMap.load(path)


def test_files_that_are_not_there_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        FeatureMap.load(tmp_path / "none.safetensors")
    with pytest.raises(InputError, match=re.escape(str(tmp_path))):
        FeatureMap.load(tmp_path)


@pytest.mark.parametrize("change", ["format", "type", "shape", "nan", "missing"])
def test_other_safetensors_are_refused(public_map: FeatureMap, change: str, tmp_path: Path) -> None:
    path = tmp_path / "map.safetensors"
    public_map.save(path)
    tensors, metadata = load_file(path), {"format": feature_map.FORMAT}
    save_file(tensors, path, metadata)
    FeatureMap.load(path)  # without a change, it is a map
    if change == "format":
        metadata = {}
    elif change == "type":
        tensors["centre"] = tensors["centre"].astype(np.float64)
    elif change == "shape":
        tensors["basis"] = tensors["basis"][:-1].copy()
    elif change == "nan":
        tensors["second_moment"][0, 0] = np.nan
    else:
        del tensors["second_moment"]
    save_file(tensors, path, metadata)
    with pytest.raises(InputError, match="not a feature map"):
        FeatureMap.load(path)


def test_the_packaged_map_fits_the_packaged_backbone() -> None:
    """And is small. Its backbone gives 224 features."""
    path = Path(feature_map.__file__).parents[1] / "vision" / "weights" / "embedded-public.safetensors"
    mapping = FeatureMap.load(path)
    assert (mapping.features, mapping.dimension) == (224, 128)
    assert path.stat().st_size < 300_000
    assert np.trace(mapping.second_moment) == pytest.approx(1)
