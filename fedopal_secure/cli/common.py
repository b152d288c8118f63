"""What all commands share: errors become one line and an exit code, tables a console, work a progress bar.

Exit code 2 is for bad input and 3 for a protocol that aborted; either leaves one line on standard error.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Final, NoReturn

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from fedopal_secure.core.errors import FedopalError, InputError, ProtocolError

BAD_INPUT: Final = 2
ABORTED: Final = 3
DEVICE_HELP: Final = "Where the backbone runs: auto (CUDA if there is one), cpu, cuda or cuda:N."


def fail(message: str, code: int) -> NoReturn:
    """End the command with one line on standard error."""
    print(f"fedopal-secure: {message}", file=sys.stderr)
    raise typer.Exit(code)


@contextmanager
def errors(rename: Callable[[str], str] = str) -> Iterator[None]:
    """Errors that a user can do something about end the command; `rename` goes over what they say."""
    try:
        yield
    except ProtocolError as error:
        fail(rename(str(error)), ABORTED)
    except FedopalError as error:
        fail(rename(str(error)), BAD_INPUT)
    except ModuleNotFoundError as error:
        fail(f'{error.name} is not installed: pip install "fedopal-secure[vision]"', BAD_INPUT)
    except BrokenPipeError:
        # Whoever read our output has closed it; what is left in the buffer has nowhere to go.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(1) from None
    except OSError as error:
        where = "" if error.filename is None else f"{error.filename}: "
        fail(f"{where}cannot be written or read ({error.strerror})", BAD_INPUT)


def new_console(**options: Any) -> Console:
    """A console without markup: class names and paths are data, and may hold brackets."""
    return Console(markup=False, highlight=False, **options)


@contextmanager
def progress(work: dict[str, int]) -> Iterator[Callable[[str, int], None]]:
    """Bars on standard error, one for each stage, as (stage, images gone through) comes in."""
    columns = (TextColumn("{task.description:<10}"), BarColumn(), MofNCompleteColumn(), TextColumn("images"))
    console = Console(stderr=True)
    clocks = (TimeElapsedColumn(), TimeRemainingColumn())
    # In a file or a pipe bars are only noise.
    with Progress(*columns, *clocks, console=console, transient=True, disable=not console.is_terminal) as progress:
        bars = {stage: progress.add_task(stage, total=total) for stage, total in work.items() if total}

        def report(stage: str, images: int) -> None:
            if stage in bars:
                progress.advance(bars[stage], images)

        yield report


def read_file(path: Path) -> bytes:
    """A file's content; raises InputError."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from None


@contextmanager
def new_file(path: Path) -> Iterator[BinaryIO]:
    """A new file to write to, which goes again if writing fails; raises InputError if there is one already."""
    try:
        file = path.open("xb")
    except FileExistsError:
        raise InputError(f"{path} exists already: choose another file") from None
    with file:
        try:
            yield file
        except BaseException:
            path.unlink()
            raise
