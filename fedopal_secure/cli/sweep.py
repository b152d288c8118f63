"""The command that runs a grid of simulations: what is to do, how long it may take, and what came out."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from fedopal_secure.cli.common import ABORTED, BAD_INPUT, errors, fail, new_console

if TYPE_CHECKING:
    from fedopal_secure.report.grid import Group, Summary
    from fedopal_secure.sweep import Cell

# The first run often takes the features for all others, and tells little.
_TOLD_AFTER: Final = (1, 5)


def sweep(
    config: Annotated[Path, typer.Argument(help="A TOML file with [base] and [grid], as examples/dp_curve.toml.")],
    out: Annotated[Path, typer.Option(help="Where runs are kept; what is there already is not run again.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only list the cells, and which have run.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print summary.json and nothing else.")] = False,
) -> None:
    """Simulate every combination of some fields' values, each once; a sweep that was stopped goes on where it was."""
    with errors():
        from fedopal_secure.report import grid
        from fedopal_secure.sweep import Runner, Store, distinct, load_grid, run_missing, seconds_left

        cells, store = load_grid(config), Store(out)
        runs = distinct(cells)
        todo = [cell for cell in runs if store.get(cell) is None]
        seconds = seconds_left(cells, store) if todo else None
        console = new_console(stderr=True)
        known = "" if seconds is None else f", which may take {_duration(seconds)}"
        console.print(
            f"{len(cells)} cells make {len(runs)} runs: {len(runs) - len(todo)} done, {len(todo)} to do{known}",
            soft_wrap=True,
        )
        if dry_run:
            missing = {cell.key for cell in todo}
            state = [(cell.key[:16], "to do" if cell.key in missing else "done", cell.label) for cell in cells]
            print(json.dumps(state) if as_json else "\n".join("  ".join(row) for row in state))
            return
        with _runs(len(todo)) as report:
            refused = run_missing(cells, store, Runner(out / "features"), report)
        summary = grid.summarise(cells, store, refused)
        store.write("cells.csv", grid.csv_table(cells, store))
        store.write("summary.json", summary.to_json() + "\n")
        title, spread = grid.title(cells), grid.spread(cells)
        curves = grid.curves(summary)
        if curves:
            try:
                from fedopal_secure.report.figures import accuracy_epsilon

                figure = out / "figures" / "accuracy_epsilon.png"
                accuracy_epsilon(figure, curves, grid.references(summary), title, spread)
            except ModuleNotFoundError as error:
                lacking = f'{error.name} is not installed, so there is no figure: pip install "fedopal-secure[plots]"'
                console.print(lacking, soft_wrap=True)
        if as_json:
            print(summary.to_json())
        else:
            _print_sweep(summary, f"test accuracy, %: {title}; {spread}")
            print(f"the sweep is in {out}")
    if summary.failures:
        label, reason = summary.failures[0]
        message = f"{len(summary.failures)} of {summary.runs} runs failed; with {label}: {reason}"
        fail(message, BAD_INPUT if len(refused) == len(summary.failures) else ABORTED)


@contextmanager
def _runs(total: int) -> Iterator[Callable[[Cell, float], None]]:
    """A bar on standard error, and after a few runs a line that says how long the others may take."""
    columns = (TextColumn("sweep"), BarColumn(), MofNCompleteColumn(), TextColumn("runs"), TimeElapsedColumn())
    console = new_console(stderr=True)
    left = TextColumn("{task.fields[left]}")
    with Progress(*columns, left, console=console, transient=True, disable=not console.is_terminal) as progress:
        bar = progress.add_task("sweep", total=total, left="")

        def report(_: Cell, seconds: float) -> None:
            done = int(progress.tasks[bar].completed) + 1
            if done in _TOLD_AFTER and done < total:
                said = f"at the pace so far, the other {total - done} runs take {_duration(seconds)}"
                console.print(said, soft_wrap=True)
            progress.update(bar, advance=1, left=f"{_duration(seconds)} left")

        yield report


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"


def _print_sweep(summary: Summary, title: str) -> None:
    from fedopal_secure.report.grid import EPSILON, SEED, curve_name
    from fedopal_secure.sweep import format_value

    def shown(group: Group) -> str:
        if group.accuracy is None or group.deviation is None:
            return "failed"
        spread = f" ± {100 * group.deviation:.2f}" if group.cells > 1 else ""
        return f"{100 * group.accuracy:.2f}{spread}"

    if EPSILON in summary.fields:
        found = {(format_value(group.values[EPSILON]), curve_name(group)): shown(group) for group in summary.groups}
        names = list(dict.fromkeys(name for _, name in found))
        table = Table("epsilon", *names)
        for epsilon in dict.fromkeys(epsilon for epsilon, _ in found):
            table.add_row(epsilon, *(found.get((epsilon, name), "") for name in names))
    else:
        table = Table(*(field for field in summary.fields if field != SEED), "accuracy")
        for group in summary.groups:
            table.add_row(*(format_value(value) for value in group.values.values()), shown(group))
    console = new_console()
    console.print(title, soft_wrap=True)
    console.print(table)
