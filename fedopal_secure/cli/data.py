"""The command that looks at a data set before anything is trained: check-data."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.table import Column, Table

from fedopal_secure.cli.common import BAD_INPUT, errors, fail, new_console, progress

if TYPE_CHECKING:
    from rich.console import Console

    from fedopal_secure.data.check import Survey

_ROWS: Final = 20  # of a list on the screen; --json has all


def check_data(
    dataset: Annotated[
        str,
        typer.Argument(help="A folder, FILE.csv, FILE.npz, FILE.tar, or any other --dataset of `simulate`."),
    ],
    seed: Annotated[int, typer.Option(min=0, help="Of the split, where we make it: the seed of the round.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")] = False,
) -> None:
    """Say which images a round with --skip-unreadable uses, which not and why, and which occur twice."""
    with errors():
        from fedopal_secure.data.check import survey
        from fedopal_secure.data.datasets import plan_dataset

        plan = plan_dataset(dataset, seed=seed)
        with progress({"reading": len(plan.train) + len(plan.test)}) as report:
            found = survey(plan, lambda: report("reading", 1))
        if as_json:
            print(json.dumps(_document(found), indent=2))
        else:
            _show(new_console(emoji=False), found)
    if found.problem is not None:
        fail(found.problem, BAD_INPUT)


def _document(found: Survey) -> dict[str, Any]:
    whole = asdict(found)
    used = {part: whole.pop(part) for part in ("train", "test")}
    counts = {"train_images": len(found.train), "test_images": len(found.test), "repeated_images": found.repeated}
    return counts | whole | {"used": used}


def _show(console: Console, found: Survey) -> None:
    from fedopal_secure.data.records import shown

    console.print(f"{shown(found.name)}: {len(found.train):,} images to train with, {len(found.test):,} to test with")
    table = Table("class", Column("train", justify="right"), Column("test", justify="right"))
    for count in found.classes:
        table.add_row(shown(count.name), f"{count.train:,}", f"{count.test:,}")
    console.print(table)

    sizes = [
        f"{size.width} x {size.height} {'grey' if size.channels == 1 else 'colour'} ({size.images:,})"
        for size in found.sizes
    ]
    console.print(f"width x height: {_first(sizes, 5)}")
    groups = found.groups
    if groups is None:
        console.print("groups: none are named, so every image counts as one by itself")
    else:
        console.print(
            f"groups: {groups.train:,} to train with, {groups.test:,} named among those to test with, "
            f"of {groups.smallest:,} to {groups.largest:,} images"
        )
        if groups.in_both:
            console.print(f"groups both to train and to test with: {_first([shown(g) for g in groups.in_both], 5)}")
    _show_repeats(console, found)

    if found.unreadable:
        console.print(f"unreadable: {len(found.unreadable):,}; a round goes on without them with --skip-unreadable")
        _show_list(console, ("file", "why"), [(shown(lost.name), lost.why) for lost in found.unreadable])
    if found.left_out:
        console.print(f"left out: {len(found.left_out):,}")
        examples: dict[str, str] = {}
        for left in found.left_out:
            examples.setdefault(left.why, shown(left.name))
        counts = Counter(left.why for left in found.left_out).most_common()
        rows = [(why, f"{number:,}", examples[why]) for why, number in counts]
        _show_list(console, ("why", "files", "the first"), rows)


def _show_repeats(console: Console, found: Survey) -> None:
    from fedopal_secure.data.records import shown

    if not found.repeats:
        console.print("no two images have the same pixels")
        return
    across = [repeat for repeat in found.repeats if len(set(repeat.parts)) > 1]
    labels = [repeat for repeat in found.repeats if len(set(repeat.classes)) > 1]
    console.print(f"images with the pixels of another: {found.repeated:,}")
    console.print(f"pictures both to train and to test with: {len(across):,}; under two labels: {len(labels):,}")
    # What spoils a measurement comes first.
    worst = sorted(found.repeats, key=lambda repeat: (repeat not in labels, repeat not in across))
    rows = [
        (", ".join(shown(name) for name in repeat.names), _once(repeat.parts), _once(repeat.classes))
        for repeat in worst
    ]
    _show_list(console, ("same pixels", "used to", "class"), rows)


def _show_list(console: Console, columns: Sequence[str], rows: Sequence[tuple[str, ...]]) -> None:
    table = Table()
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows[:_ROWS]:
        table.add_row(*row)
    console.print(table)
    if len(rows) > _ROWS:
        console.print(f"and {len(rows) - _ROWS:,} more: --json has all")


def _once(values: Sequence[str]) -> str:
    from fedopal_secure.data.records import shown

    return " and ".join(shown(value) for value in sorted(set(values)))


def _first(values: Sequence[str], count: int) -> str:
    more = f" and {len(values) - count:,} more" if len(values) > count else ""
    return ", ".join(values[:count]) + more
