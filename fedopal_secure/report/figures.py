"""Figures, drawn with matplotlib and without a display."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullLocator, PercentFormatter

from fedopal_secure.core.errors import InputError
from fedopal_secure.core.params import least_cohort

# Okabe and Ito's colours, which the colour-blind can tell apart; markers and dashes serve those who print in grey.
_COLOURS: Final = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_MARKERS: Final = ("o", "s", "^", "D", "v", "P", "X")
_FAR: Final = 0.2  # of accuracy: what is further below the curves gets a panel of its own
_REFERENCE_DASHES: Final = ("--", ":", "-.", (0, (8, 3)), (0, (1, 4)))


def accuracy_epsilon(
    path: Path,
    curves: Mapping[str, Sequence[tuple[float, float, float]]],
    references: Mapping[str, float],
    title: str,
    spread: str,
) -> None:
    """Draw accuracy against epsilon into a PNG.

    `curves` are points (epsilon, mean accuracy, deviation) by name, in order of epsilon; `references` accuracies that
    have no epsilon, drawn as level lines. Accuracies are shares, of 1. `spread` says what means and deviations are of.
    Raises InputError if there is nothing to draw.
    """
    epsilons = sorted({point[0] for points in curves.values() for point in points})
    if not epsilons:
        raise InputError("no run with a finite epsilon has a result, so there is no curve to draw")
    levels = {f"{name} ({accuracy:.1%})": accuracy for name, accuracy in references.items()}
    lowest = min(accuracy - bar for points in curves.values() for _, accuracy, bar in points)
    far_below = [accuracy for accuracy in references.values() if accuracy < lowest - _FAR]
    figure = Figure(figsize=(7, 5), dpi=150, layout="constrained")
    if far_below:
        # One axis down to these levels would press the curves into a corner: it is cut, and they get a strip of theirs.
        above, strip = figure.subplots(2, sharex=True, height_ratios=(7, 1))
        _draw_accuracies(above, curves, levels)
        _draw_accuracies(strip, curves, levels)
        everything = [accuracy + bar for points in curves.values() for _, accuracy, bar in points]
        highest = max(*everything, *references.values())
        margin = 0.05 * (highest - lowest)
        above.set_ylim(lowest - margin, highest + margin)
        strip.set_ylim(min(far_below) - 0.03, max(far_below) + 0.03)
        strip.set_yticks([min(far_below)])
        _cut(above, strip)
    else:
        above = strip = figure.subplots()
        _draw_accuracies(above, curves, levels)
        above.set_ylim(0, 1)
    above.set_title(f"{title}\n{spread}", fontsize=11)
    above.set_ylabel("test accuracy")
    strip.set_xlabel("privacy loss ε of one unit, added or removed (log scale)")
    strip.set_xticks(epsilons, [f"{epsilon:g}" for epsilon in epsilons])
    strip.xaxis.set_minor_locator(NullLocator())
    # Curves may be anywhere, so the legend is below them; what has an epsilon comes first.
    handles, names = above.get_legend_handles_labels()
    order = sorted(range(len(names)), key=lambda place: names[place] in levels)
    chosen = [handles[place] for place in order], [names[place] for place in order]
    figure.legend(*chosen, loc="outside lower center", ncols=3, frameon=False, fontsize=9)
    _save(figure, path)


def _draw_accuracies(
    axes: Axes, curves: Mapping[str, Sequence[tuple[float, float, float]]], levels: Mapping[str, float]
) -> None:
    for place, (name, points) in enumerate(curves.items()):
        x, y, bars = zip(*points, strict=True)
        # Curves that overlap would hide each other's bars: each is moved a little aside, by a factor.
        aside = [epsilon * 1.012 ** (2 * place - len(curves) + 1) for epsilon in x]
        axes.errorbar(
            aside,
            y,
            yerr=bars if any(bars) else None,
            color=_COLOURS[place % len(_COLOURS)],
            marker=_MARKERS[place % len(_MARKERS)],
            capsize=3,
            linewidth=1.6,
            label=name,
        )
    for place, (name, accuracy) in enumerate(levels.items()):
        dashes = _REFERENCE_DASHES[place % len(_REFERENCE_DASHES)]
        axes.axhline(accuracy, color="0.35", linestyle=dashes, linewidth=1.2, label=name)
    axes.set_xscale("log")
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    _tidy(axes)


def _cut(above: Axes, below: Axes) -> None:
    """Mark that the axis goes on from one panel to the other with a gap between them."""
    above.spines["bottom"].set_visible(False)
    above.tick_params(axis="x", which="both", length=0)
    for axes, end in ((above, 0), (below, 1)):
        axes.plot(
            [0],
            [end],
            transform=axes.transAxes,
            marker=[(-1, -0.5), (1, 0.5)],
            markersize=8,
            linestyle="none",
            color="black",
            clip_on=False,
        )


def calibration_cost(path: Path, clients: int, corrupt: int | None = None) -> None:
    """Draw, into a PNG, how much larger the noise in a sum is than its claim counts on.

    Clients' noise is calibrated to m = min_survivors - corrupt honest survivors; with n survivors its standard
    deviation is sqrt(n / m) times what the claim needs. `corrupt` is clients / 5 if not given, as in a round's
    configuration. Raises InputError if so few clients leave no cohort.
    """
    c = clients // 5 if corrupt is None else corrupt
    least = least_cohort(c)
    if c < 0 or clients < least:
        raise InputError(f"{clients} clients with {c} corrupt ones make no cohort: give at least {least}")
    # From the least cohort that is allowed to all clients, in up to five steps.
    cohorts = sorted({round(least + (clients - least) * step / 4) for step in range(5)})
    title = f"The cost of calibrating to fewer survivors: {clients} clients, c = {c} corrupt"
    figure, axes = _blank(title, "survivors n", "noise in the sum / noise that the claim needs, √(n/m)")
    for place, cohort in enumerate(cohorts):
        m = cohort - c
        survivors = list(range(cohort, clients + 1))
        axes.plot(
            survivors,
            [math.sqrt(n / m) for n in survivors],
            color=_COLOURS[place],
            marker=_MARKERS[place],
            markevery=max(1, len(survivors) // 8),
            linewidth=1.6,
            label=f"m = {m} (min_survivors = {cohort})",
        )
    axes.axhline(1, color="0.35", linestyle="--", linewidth=1.2, label="what the claim needs")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda ratio, _: f"{ratio:g}×"))
    axes.set_ylim(bottom=0.9)
    axes.legend(frameon=False, fontsize=9)
    _save(figure, path)


def _blank(title: str, x: str, y: str) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(7, 4.6), dpi=150, layout="constrained")
    axes = figure.add_subplot()
    axes.set_title(title, fontsize=11)
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    _tidy(axes)
    return figure, axes


def _tidy(axes: Axes) -> None:
    axes.grid(color="0.9")
    axes.spines[["top", "right"]].set_visible(False)


def _save(figure: Figure, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, format="png")
