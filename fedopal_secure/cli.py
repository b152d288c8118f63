"""The command line: each command reads its options, calls one function of the library, and prints what it found.

Exit code 2 is for bad input and 3 for a protocol that aborted; either leaves one line on standard error.
"""

from __future__ import annotations

import csv
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from fedopal_secure.core.errors import FedopalError, InputError, ProtocolError
from fedopal_secure.federation.config import PolicyConfig, SimulationConfig, load_toml, parse_config

if TYPE_CHECKING:
    from fedopal_secure.runtimes.result import Result

# Before torch is loaded: threads that wait sleep. Spinning, they take the cores from whatever else runs on the machine.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="One-shot federated image classification in which the server learns sums and nothing else.",
)
keys_app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Long-term identities of clients and servers.")
app.add_typer(keys_app, name="keys")

BAD_INPUT, ABORTED = 2, 3


def _fail(message: str, code: int) -> NoReturn:
    print(f"fedopal-secure: {message}", file=sys.stderr)
    raise typer.Exit(code)


@contextmanager
def _errors(rename: Callable[[str], str] = str) -> Iterator[None]:
    try:
        yield
    except ProtocolError as error:
        _fail(rename(str(error)), ABORTED)
    except FedopalError as error:
        _fail(rename(str(error)), BAD_INPUT)
    except ModuleNotFoundError as error:
        _fail(f'{error.name} is not installed: pip install "fedopal-secure[vision]"', BAD_INPUT)
    except BrokenPipeError:
        # Whoever read our output has closed it; what is left in the buffer has nowhere to go.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(1) from None
    except OSError as error:
        where = "" if error.filename is None else f"{error.filename}: "
        _fail(f"{where}cannot be written or read ({error.strerror})", BAD_INPUT)


def _console(**options: Any) -> Console:
    # Without markup: class names and paths are data, and may hold brackets.
    return Console(markup=False, highlight=False, **options)


@contextmanager
def _progress(work: dict[str, int]) -> Iterator[Callable[[str, int], None]]:
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


@app.command()
def demo(
    out: Annotated[Path | None, typer.Option(help="Leave the two-phase run in this folder.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the data split, tuning, keys and masks.")] = 0,
) -> None:
    """Twelve simulated clients with real digits train one classifier; five of them drop out on the way."""
    with _errors():
        from fedopal_secure.runtimes.demo import Demo
        from fedopal_secure.runtimes.simulation import check_output

        if out is not None:
            check_output(out)
        prepared = Demo(seed)
        with _progress(prepared.work) as report:
            found = prepared.run(out, report)
        console = _console(width=None if sys.stdout.isatty() else 100)
        table = Table("", title=f"1,000 test digits, {found.clients} clients, Dirichlet alpha = 0.1")
        for column in ("accuracy", "upload per client", "as plain float32", "ratio"):
            table.add_column(column, justify="right")
        for row in found.rows:
            sizes = ["-", "-", "-"]
            if row.upload_bytes is not None and row.plain_float32_bytes is not None:
                ratio = row.upload_bytes / row.plain_float32_bytes
                sizes = [f"{row.upload_bytes:,} B", f"{row.plain_float32_bytes:,} B", f"{ratio:.2f}"]
            table.add_row(row.name, f"{row.accuracy:.2%}", *sizes)
        console.print(table)
        gone = ", ".join(f"{name} before '{phase}'" for name, phase in found.dropped)
        console.print(f"{len(found.dropped)} of {found.clients} clients dropped out on the way: {gone}.")
        console.print("What those who never uploaded held is not in the sums; with so skewed a split it shows.")
        console.print(f"The masked sums equalled the plain sums of those who uploaded: difference {found.difference}.")
        same = "is" if found.identical else "is NOT"
        console.print(f"The two-phase head {same} the one computed centrally on their pooled data, bit for bit.")
        console.print(f"{found.seconds:.0f} s of work." + ("" if out is None else f" The two-phase run is in {out}."))


@app.command()
def simulate(
    config: Annotated[Path | None, typer.Argument(help="A TOML file, as examples/simulate.toml; options win.")] = None,
    dataset: Annotated[
        str | None, typer.Option(help="'digits', a folder, FILE.npz, FILE.tar, or a name in $FEDOPAL_DATA.")
    ] = None,
    train_limit: Annotated[int | None, typer.Option(help="Use only this many training images.")] = None,
    skip_unreadable: Annotated[bool, typer.Option(help="Skip and count unreadable images.")] = False,
    backbone: Annotated[str | None, typer.Option(help="'embedded' or 'timm:NAME[@CHECKPOINT]'.")] = None,
    image_size: Annotated[int | None, typer.Option(help="Side of the backbone's input, pixels.")] = None,
    clients: Annotated[int | None, typer.Option(help="Number of clients; above 256 the graph is sparse.")] = None,
    corrupt: Annotated[int | None, typer.Option(help="Corrupt clients tolerated, c; default: clients / 5.")] = None,
    min_contributors: Annotated[
        int | None, typer.Option(help="Take a census first; stop if a class has fewer honest contributors.")
    ] = None,
    alpha: Annotated[float | None, typer.Option(help="Dirichlet concentration; small is skewed, inf is even.")] = None,
    prompts: Annotated[str | None, typer.Option(help="none, local, two-phase, or public:MODEL.safetensors.")] = None,
    protocol: Annotated[str | None, typer.Option(help="pairwise or plain.")] = None,
    drop: Annotated[
        list[str] | None,
        typer.Option(help="[SESSION.]PHASE:COUNT or [SESSION.]PHASE:ID,ID disappear before that phase. Repeatable."),
    ] = None,
    ridge: Annotated[str | None, typer.Option("--lambda", help="'gcv', or a number.")] = None,
    seed: Annotated[int | None, typer.Option(help="Of the data split, tuning, keys and masks.")] = None,
    baselines: Annotated[bool, typer.Option(help="Also compute the baselines, for comparison.")] = False,
    policy: Annotated[Path | None, typer.Option(help="A client's policy, as examples/policy.toml.")] = None,
    out: Annotated[Path | None, typer.Option(help="Leave the run in this folder.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print result.json and nothing else.")] = False,
) -> None:
    """Run one round with simulated clients, on real data and over the real protocol."""
    options = {
        "dataset": dataset,
        "train_limit": train_limit,
        "skip_unreadable": skip_unreadable or None,
        "backbone": backbone,
        "image_size": image_size,
        "clients": clients,
        "corrupt": corrupt,
        "min_contributors": min_contributors,
        "alpha": alpha,
        "protocol": protocol,
        "drop": drop or None,
        "seed": seed,
        "baselines": baselines or None,
    }
    with _errors():
        values = {} if config is None else load_toml(config)
        values |= {name: value for name, value in options.items() if value is not None}
        if prompts is not None:
            mode, _, file = prompts.partition(":")
            if file and mode != "public":
                raise InputError(f"--prompts {prompts}: only 'public' takes a file")
            values["prompts"] = _section(values, "prompts") | {"mode": mode} | ({"file": file} if file else {})
        if ridge is not None:
            values["head"] = _section(values, "head") | _lambda(ridge)
        settings = parse_config(SimulationConfig, values, "options" if config is None else str(config))
        rules = None if policy is None else parse_config(PolicyConfig, load_toml(policy), str(policy))
        from fedopal_secure.runtimes.simulation import Simulation, check_output, work

        if out is not None:
            check_output(out)
        simulation = Simulation(settings, rules)
    with _errors(simulation.with_names):
        with _progress(work(simulation)) as report:
            result = simulation.run(out, report).result
        if as_json:
            print(result.to_json())
        else:
            _print_result(result, out)


def _section(values: dict[str, Any], name: str) -> dict[str, Any]:
    section = values.get(name, {})
    if not isinstance(section, dict):
        raise InputError(f"'{name}' is a table in the configuration: write [{name}] and its fields below it")
    return section


def _lambda(text: str) -> dict[str, Any]:
    if text == "gcv":
        return {"rule": "gcv"}
    try:
        return {"rule": "fixed", "value": float(text)}
    except ValueError:
        raise InputError(f"--lambda {text}: give 'gcv' or a number") from None


def _print_result(result: Result, out: Path | None) -> None:
    console = _console()
    top5 = "" if result.accuracy_top5 is None else f", top-5 {result.accuracy_top5:.2%}"
    console.print(f"accuracy {result.accuracy:.2%}{top5} on {result.test_images} test images")
    table = Table(
        "session", "survivors", "dropped", "threshold", "setup", "upload", "closing", title="bytes per client"
    )
    for session in result.sessions:
        dropped = ", ".join(f"{phase}: {len(names)}" for phase, names in session.dropped.items()) or "none"
        survivors = f"{len(session.survivors)} of {result.clients}"
        sizes = (session.setup_bytes_per_client, session.upload_bytes_per_client, session.closing_bytes_per_client)
        table.add_row(session.name, survivors, dropped, str(session.threshold), *(f"{size:,}" for size in sizes))
    console.print(table)
    plain, triangle = result.plain_float32_bytes, result.plain_float32_triangle_bytes
    console.print(f"plain float32 takes {plain:,} bytes, {triangle:,} with a triangle of R")
    console.print(f"lambda {result.ridge.value:.4g} ({result.ridge.rule})")
    if result.exact is not None:
        console.print(f"the sums differ from the plain sums by {result.exact.max_abs_difference}")
    if result.baseline is not None:
        b = result.baseline
        tuned = "" if b.pooled_tuning is None else f", prompts tuned on pooled data {b.pooled_tuning:.2%}"
        same = "the same head bit for bit" if b.head_identical else "another head"
        console.print(
            f"pooled data: no prompts {b.no_prompt:.2%}, released prompts {b.centralised:.2%} ({same}){tuned}",
            highlight=False,
        )
    if result.skipped_images:
        console.print(f"{result.skipped_images} unreadable images were skipped")
    if out is not None:
        console.print(f"the run is in {out}")


@app.command()
def predict(
    model: Annotated[Path, typer.Argument(help="model.safetensors of a run.")],
    images: Annotated[list[Path], typer.Argument(help="Image files, or folders of them.")],
    image_size: Annotated[int | None, typer.Option(help="Side of the backbone's input, as in the round.")] = None,
) -> None:
    """Classify images: CSV with file, label and score on standard output."""
    with _errors():
        from fedopal_secure.data.images import read_image
        from fedopal_secure.data.sources import find_images
        from fedopal_secure.model import Model

        released = Model.load(model)
        files = [file for path in images for file in (find_images(path) if path.is_dir() else [path])]
        if not files:
            raise InputError(f"{images[0]} has no images: give image files or a folder of them")
        backbone = released.load_backbone(image_size)
        prepared = [backbone.preprocess(read_image(file)) for file in files]
        import numpy as np

        with _progress({"prediction": len(files)}) as report:
            scores = released.scores(backbone, np.stack(prepared), lambda done: report("prediction", done))
        rows = csv.writer(sys.stdout, lineterminator="\n")
        rows.writerow(("file", "label", "score"))
        for file, row in zip(files, scores, strict=True):
            best = int(row.argmax())
            rows.writerow((file, released.classes[best], f"{row[best]:.6f}"))


@app.command()
def evaluate(
    model: Annotated[Path, typer.Argument(help="model.safetensors of a run.")],
    folder: Annotated[str, typer.Argument(help="Labelled images: CLASS/*, test/CLASS/*, FILE.npz or FILE.tar.")],
    image_size: Annotated[int | None, typer.Option(help="Side of the backbone's input, as in the round.")] = None,
    skip_unreadable: Annotated[bool, typer.Option(help="Skip and count unreadable images.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")] = False,
) -> None:
    """Measure a model on labelled images: accuracy, recall of each class, AUC."""
    with _errors():
        import numpy as np

        from fedopal_secure.data.datasets import load_labelled
        from fedopal_secure.model import Model
        from fedopal_secure.model import evaluate as measure

        released = Model.load(model)
        backbone = released.load_backbone(image_size)
        labelled, skipped = load_labelled(
            folder, released.classes, skip_unreadable=skip_unreadable, transform=backbone.preprocess
        )
        with _progress({"evaluation": len(labelled)}) as report:
            scores = released.scores(backbone, np.asarray(labelled.images), lambda done: report("evaluation", done))
        found = measure(scores, labelled.labels, released.classes)
        if as_json:
            print(json.dumps(asdict(found) | {"skipped_images": len(skipped)}, indent=2))
            return
        table = Table("class", "recall")
        for name, recall in found.recall.items():
            table.add_row(name, "no images" if recall is None else f"{recall:.2%}")
        console = _console()
        console.print(table)
        top5 = "" if found.accuracy_top5 is None else f", top-5 {found.accuracy_top5:.2%}"
        auc = "" if found.auc is None else f", AUC {found.auc:.4f}"
        console.print(f"accuracy {found.accuracy:.2%}{top5}{auc} on {found.images} images")
        if skipped:
            console.print(f"{len(skipped)} unreadable images were skipped")


@keys_app.command("new")
def keys_new(
    name: Annotated[str, typer.Argument(help="Whose key it is; a name for people, which is not sent anywhere.")],
    folder: Annotated[Path, typer.Option(help="Where the private key goes.")] = Path(),
) -> None:
    """Make a long-term Ed25519 identity: NAME.key (private, readable by you only) and a line for policies."""
    with _errors():
        from fedopal_secure.federation.keys import create_key

        path, identity = create_key(folder, name)
        print(f"{path} holds the private key: keep it, and show it to no one", file=sys.stderr)
        print(f'{json.dumps(name)} = "{identity.hex()}"')


@keys_app.command("show")
def keys_show(path: Annotated[Path, typer.Argument(help="A file that `keys new` wrote.")]) -> None:
    """Print the public half of a key, as the line for policies."""
    with _errors():
        from fedopal_secure.federation.keys import load_key

        print(f'{json.dumps(path.stem)} = "{load_key(path).identity.hex()}"')


if __name__ == "__main__":
    app()
