"""Precision follows the hardware and is nobody's accident; where bfloat16 is used, only the frozen blocks see it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from fedopal_secure.core.errors import InputError, MisuseError
from fedopal_secure.encoding.prompts import initial_prompts
from fedopal_secure.vision import devices, tuning
from fedopal_secure.vision.backbone import load_backbone
from fedopal_secure.vision.devices import device_named, full_precision, loaded, repeatable, tuning_dtype
from fedopal_secure.vision.features import extract_features
from fedopal_secure.vision.timm_vit import TimmVit
from fedopal_secure.vision.tuning import TuningConfig, tune_prompts
from tests.vision.conftest import CLASSES

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
START = initial_prompts(bytes(32), 4, 32)
CONFIG = TuningConfig(tokens=4, epochs=2, batch_size=16)


@pytest.mark.parametrize(
    ("gpus", "name", "found"),
    [
        (0, "auto", "cpu"),
        (0, "cpu", "cpu"),
        (2, "auto", "cuda:0"),
        (2, "cpu", "cpu"),
        (2, "cuda", "cuda:0"),
        (2, "cuda:1", "cuda:1"),
        (2, "cuda:2", "no device 'cuda:2': there are auto, cpu, cuda:0, cuda:1"),
        (2, "cuda:", "no device 'cuda:': there are auto, cpu, cuda:0, cuda:1"),
        (0, "cuda", "no device 'cuda': torch sees no CUDA here; take 'cpu' or 'auto'"),
        (0, "tpu", "no device 'tpu': there are auto, cpu"),
    ],
)
def test_a_device_is_named_or_refused_in_one_line(
    gpus: int, name: str, found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    try:
        told = str(device_named(name))
    except InputError as error:
        told = str(error)
    assert told == found


def test_a_backbone_goes_to_its_device_and_stays_frozen() -> None:
    assert load_backbone("embedded", device="cpu").device == CPU
    with pytest.raises(InputError, match="no device 'somewhere'"):
        load_backbone("timm:absent", device="somewhere")


@pytest.fixture
def in_bf16(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on hardware that has bfloat16; a CPU without it emulates it."""
    monkeypatch.setattr(tuning, "tuning_dtype", lambda device: torch.bfloat16)


@pytest.mark.parametrize(
    ("line", "dtype"),
    [
        ("flags\t\t: fpu sse2 avx2 fma", torch.float32),
        ("flags\t\t: fpu avx512f avx512bw avx512vl", torch.float32),  # emulated there
        ("flags\t\t: fpu avx512f avx512_bf16 fma", torch.bfloat16),
        ("flags\t\t: amx_bf16 amx_tile", torch.bfloat16),
        ("Features\t: fp asimd i8mm bf16", torch.bfloat16),
        ("bugs\t\t: bf16", torch.float32),
        ("", torch.float32),
    ],
)
def test_a_cpu_tunes_in_bfloat16_if_it_says_that_it_has_it(
    line: str, dtype: torch.dtype, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "cpuinfo"
    file.write_text(f"processor\t: 0\n{line}\n\nprocessor\t: 1\n{line}\n", encoding="ascii")
    monkeypatch.setattr(devices, "_CPUINFO", file)
    devices.cpu_flags.cache_clear()
    try:
        assert tuning_dtype(CPU) == dtype
        assert tuning_dtype(torch.device("mps")) == torch.float32
    finally:
        devices.cpu_flags.cache_clear()


def test_where_no_file_says_what_the_cpu_has_it_is_float32(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "_CPUINFO", tmp_path / "none")
    devices.cpu_flags.cache_clear()
    try:
        assert tuning_dtype(CPU) == torch.float32
    finally:
        devices.cpu_flags.cache_clear()


@pytest.mark.parametrize("native", [False, True])
def test_a_gpu_tunes_in_bfloat16_if_it_does_not_emulate_it(native: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: native or including_emulation)
    assert tuning_dtype(CUDA) == (torch.bfloat16 if native else torch.float32)


@pytest.mark.usefixtures("in_bf16")
def test_in_bfloat16_prompts_stay_float32_repeat_and_go_where_they_go_in_float32(
    backbone: TimmVit, images: NDArray[np.uint8], labels: NDArray[np.int64], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[torch.dtype] = []
    backbone.vit.blocks[0].mlp.fc1.register_forward_hook(lambda module, inputs, output: seen.append(output.dtype))
    first, second = (tune_prompts(backbone, images, labels, CLASSES, START, CONFIG, seed=3) for _ in range(2))
    assert set(seen) == {torch.bfloat16}
    assert first.dtype == np.float32
    assert np.array_equal(first, second)
    monkeypatch.setattr(tuning, "tuning_dtype", lambda device: torch.float32)
    full = tune_prompts(backbone, images, labels, CLASSES, START, CONFIG, seed=3)
    assert not np.array_equal(first, full)
    moved, expected = (first - START).ravel(), (full - START).ravel()
    assert moved @ expected > 0.9 * np.linalg.norm(moved) * np.linalg.norm(expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_only_prompts_and_head_take_a_gradient(
    dtype: torch.dtype,
    backbone: TimmVit,
    images: NDArray[np.uint8],
    labels: NDArray[np.int64],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The leaves of the graph behind every loss: nothing else is accumulated into."""
    leaves: list[set[tuple[int, ...]]] = []
    entropy = torch.nn.functional.cross_entropy

    def watched(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        assert logits.dtype == torch.float32
        loss = entropy(logits, target)
        nodes, found = [loss.grad_fn], set()
        while nodes:
            node = nodes.pop()
            if hasattr(node, "variable"):
                found.add(tuple(node.variable.shape))
            nodes += [before for before, _ in node.next_functions if before is not None]
        leaves.append(found)
        return loss

    monkeypatch.setattr(tuning, "tuning_dtype", lambda device: dtype)
    monkeypatch.setattr(tuning.F, "cross_entropy", watched)
    tune_prompts(backbone, images[:20], labels[:20], CLASSES, START, TuningConfig(tokens=4, epochs=1, batch_size=16), 0)
    assert leaves == [{(4, 32), (CLASSES, 32), (CLASSES,)}] * 2


def test_a_backbone_whose_weights_take_a_gradient_is_refused(
    backbone: TimmVit, images: NDArray[np.uint8], labels: NDArray[np.int64]
) -> None:
    backbone.vit.norm.requires_grad_(True)
    with pytest.raises(MisuseError, match=r"the weights of tiny take a gradient: call its freeze\(\)"):
        tune_prompts(backbone, images, labels, CLASSES, START, CONFIG, seed=0)


def test_what_the_caller_has_switched_on_changes_neither_features_nor_prompts(
    backbone: TimmVit, images: NDArray[np.uint8], labels: NDArray[np.int64], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuning, "tuning_dtype", lambda device: torch.float32)

    def results() -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        tuned = tune_prompts(backbone, images, labels, CLASSES, START, CONFIG, seed=0)
        return extract_features(backbone, images, START), tuned

    plain = results()
    with torch.autocast("cpu", torch.bfloat16):
        features = backbone(backbone.normalise(images[:1]))
        assert features.dtype == torch.bfloat16 or not np.array_equal(features[0], plain[0][0])  # the control
        inside = results()
    assert all(np.array_equal(one, other) for one, other in zip(plain, inside, strict=True))


@pytest.mark.filterwarnings("ignore:.*CUDA is not available")
def test_settings_for_cuda_hold_inside_and_are_what_they_were_outside() -> None:
    def settings() -> list[bool]:
        matmul, convolution = torch.backends.cuda.matmul, torch.backends.cudnn
        return [torch.are_deterministic_algorithms_enabled(), matmul.allow_tf32, convolution.allow_tf32]

    before = settings()
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        with repeatable(CUDA), full_precision(CUDA):
            assert settings() == [True, False, False]
            assert torch.is_deterministic_algorithms_warn_only_enabled()
        assert settings() == [False, True, before[2]]
        with repeatable(CPU), full_precision(CPU):
            assert settings() == [False, True, before[2]]
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before[1]


def test_loading_keeps_the_order_and_is_not_ahead_on_a_cpu() -> None:
    made: list[int] = []

    def load(item: int) -> torch.Tensor:
        made.append(item)
        return torch.tensor(item)

    for place, (item, tensor) in enumerate(loaded(load, [5, 3, 4], CPU), start=1):
        assert item == tensor.item()
        assert len(made) == place
    assert made == [5, 3, 4]


def test_compiled_blocks_tune_to_the_same_prompts_and_take_no_part_in_features(
    backbone: TimmVit, images: NDArray[np.uint8], labels: NDArray[np.int64], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The compiler itself takes a minute, so its front end stands for it: the same graph, run as it is."""
    monkeypatch.setattr(tuning, "tuning_dtype", lambda device: torch.float32)
    plain = tune_prompts(backbone, images, labels, CLASSES, START, CONFIG, seed=0)
    features = extract_features(backbone, images, plain)
    used: list[int] = []
    whole = torch.compile

    def compile_quickly(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        return whole(function, backend=lambda graph, inputs: used.append(1) or graph.forward)

    monkeypatch.setattr(torch, "compile", compile_quickly)
    backbone.compile_tuning()
    compiled = tune_prompts(backbone, images, labels, CLASSES, START, CONFIG, seed=0)
    assert used
    np.testing.assert_allclose(compiled, plain, rtol=0, atol=1e-4)
    used.clear()
    assert np.array_equal(extract_features(backbone, images, plain), features)
    assert not used


def test_a_compiler_that_fails_is_one_line(
    backbone: TimmVit, images: NDArray[np.uint8], labels: NDArray[np.int64], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> None:
        raise OSError("no C++ compiler")

    whole = torch.compile
    monkeypatch.setattr(torch, "compile", lambda function: whole(function, backend=broken))
    backbone.compile_tuning()
    with pytest.raises(InputError, match=r"torch cannot compile the backbone here \(.*no C\+\+ compiler.*--compile"):
        tune_prompts(backbone, images, labels, CLASSES, START, CONFIG, seed=0)
