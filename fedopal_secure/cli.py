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
    from fedopal_secure.report.grid import Group, Summary
    from fedopal_secure.runtimes.result import Privacy, Result
    from fedopal_secure.sweep import Cell

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
    prompts: Annotated[
        str | None,
        typer.Option(help="none, local, two-phase, public:MODEL.safetensors, or dp-sgd:CLIP (two-phase, private)."),
    ] = None,
    epsilon: Annotated[
        float | None, typer.Option(help="Privacy loss allowed for one image: 1 is strict, 8 loose, inf none.")
    ] = None,
    delta: Annotated[float | None, typer.Option(help="Its delta, below one over max_images; default 1e-5.")] = None,
    privacy: Annotated[
        str | None, typer.Option(help="Who adds the noise: distributed (default), central or local.")
    ] = None,
    public_map: Annotated[
        str | None,
        typer.Option(help="Under noise: FILE of `public-map`, 'embedded' (that backbone's default), 'none'."),
    ] = None,
    protocol: Annotated[str | None, typer.Option(help="pairwise or plain.")] = None,
    drop: Annotated[
        list[str] | None,
        typer.Option(help="[SESSION.]PHASE:COUNT or [SESSION.]PHASE:ID,ID disappear before that phase. Repeatable."),
    ] = None,
    ridge: Annotated[
        str | None, typer.Option("--lambda", help="auto, gcv, private-ridge, class-mean, or a number.")
    ] = None,
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
            values["prompts"] = _prompts(_section(values, "prompts"), prompts)
        wished = {"epsilon": epsilon, "delta": delta, "mode": privacy}
        if any(value is not None for value in wished.values()):
            given = {name: value for name, value in wished.items() if value is not None}
            values["privacy"] = _section(values, "privacy") | given
            if "epsilon" not in values["privacy"]:
                raise InputError("--privacy and --delta need an --epsilon")
        if "dp_sgd" in _section(values, "prompts") and "privacy" not in values:
            raise InputError(
                "prompts by DP-SGD are part of a private release: give an --epsilon (inf compares without)"
            )
        if public_map is not None:
            if "privacy" not in values:
                raise InputError("--public-map helps under noise only: give an --epsilon too")
            values["features"] = _section(values, "features") | {"public": public_map}
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


def _print_privacy(console: Console, privacy: Privacy) -> None:
    unit = "one image" if privacy.unit == "image" else f"one group of at most {privacy.unit_images} images"
    console.print(
        f"({privacy.epsilon:.4g}, {privacy.delta:g})-differential privacy for {unit}, {privacy.mode} noise, "
        f"{privacy.accountant} accountant; the noise in this sum is {privacy.realised:.2f} times what the claim needs"
    )
    if privacy.mode == "central":
        console.print("the server saw the sums without noise: the claim is against those who see the model only")


def _section(values: dict[str, Any], name: str) -> dict[str, Any]:
    section = values.get(name, {})
    if not isinstance(section, dict):
        raise InputError(f"'{name}' is a table in the configuration: write [{name}] and its fields below it")
    return section


def _prompts(section: dict[str, Any], text: str) -> dict[str, Any]:
    mode, _, detail = text.partition(":")
    if mode == "dp-sgd":
        try:
            clip = float(detail)
        except ValueError:
            raise InputError(f"--prompts {text}: DP-SGD needs its clipping bound: dp-sgd:1.0, say") from None
        return section | {"mode": "two-phase", "dp_sgd": _section(section, "dp_sgd") | {"clip": clip}}
    if detail and mode != "public":
        raise InputError(f"--prompts {text}: only 'public' takes a file")
    return section | {"mode": mode} | ({"file": detail} if detail else {})


def _lambda(text: str) -> dict[str, Any]:
    try:
        return {"rule": "fixed", "value": float(text)}
    except ValueError:
        return {"rule": text}


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
    if result.privacy is not None:
        _print_privacy(console, result.privacy)
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
def privacy(
    config: Annotated[Path, typer.Argument(help="A TOML file, as examples/simulate.toml, with a [privacy] table.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print the release as JSON and nothing else.")] = False,
) -> None:
    """Plan a private release: the noise on each segment, what it claims, and the line that goes into a policy."""
    with _errors():
        settings = parse_config(SimulationConfig, load_toml(config), str(config))
        from fedopal_secure.federation.vectors import task_release
        from fedopal_secure.privacy.release import total_sigma
        from fedopal_secure.runtimes.simulation import Simulation

        task = Simulation(settings).task
        release = task_release(task)
        if release is None:
            raise InputError(f"{config}: there is nothing private to plan: add [privacy] with a finite epsilon")
        if as_json:
            print(task.release)
            return
        console = _console()
        table = Table(
            "segment", "entries", "one unit moves it by", "sigma of each", "sigma counted on", title="grid units"
        )
        counted = total_sigma(release, release.contributors)
        for segment in release.segments:
            moved, total = f"{segment.squared_sensitivity**0.5:,.0f}", f"{counted[segment.name]:,.0f}"
            table.add_row(segment.name, f"{segment.length:,}", moved, f"{segment.sigma:,}", total)
        console.print(table)
        console.print(
            f"({release.epsilon:.4g}, {release.delta:g})-differential privacy, {release.mode}, counting on "
            f"{release.contributors} honest contributor{'s' * (release.contributors > 1)} of noise"
        )
        console.print("the lines of a policy that agrees to this release, once, and to no other:")
        print(f"release = '{task.release}'\nepsilon = {release.epsilon!r}\ndelta = {release.delta!r}")


@app.command()
def sweep(
    config: Annotated[Path, typer.Argument(help="A TOML file with [base] and [grid], as examples/dp_curve.toml.")],
    out: Annotated[Path, typer.Option(help="Where runs are kept; what is there already is not run again.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only list the cells, and which have run.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print summary.json and nothing else.")] = False,
) -> None:
    """Simulate every combination of some fields' values, each once; a sweep that was stopped goes on where it was."""
    with _errors():
        from fedopal_secure.report import grid
        from fedopal_secure.sweep import Runner, Store, distinct, load_grid, run_missing, seconds_left

        cells, store = load_grid(config), Store(out)
        runs = distinct(cells)
        todo = [cell for cell in runs if store.get(cell) is None]
        seconds = seconds_left(cells, store) if todo else None
        console = _console(stderr=True)
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
        _fail(message, BAD_INPUT if len(refused) == len(summary.failures) else ABORTED)


# The first run often takes the features for all others, and tells little.
_TOLD_AFTER = (1, 5)


@contextmanager
def _runs(total: int) -> Iterator[Callable[[Cell, float], None]]:
    """A bar on standard error, and after a few runs a line that says how long the others may take."""
    columns = (TextColumn("sweep"), BarColumn(), MofNCompleteColumn(), TextColumn("runs"), TimeElapsedColumn())
    console = _console(stderr=True)
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
    console = _console()
    console.print(title, soft_wrap=True)
    console.print(table)


@app.command("public-map")
def public_map(
    images: Annotated[str, typer.Argument(help="PUBLIC images, of which no client holds any: as --dataset.")],
    out: Annotated[Path, typer.Option(help="The file to write, .safetensors; every client needs it.")],
    backbone: Annotated[str, typer.Option(help="'embedded' or 'timm:NAME[@CHECKPOINT]'.")] = "embedded",
    image_size: Annotated[int | None, typer.Option(help="Side of the backbone's input, pixels.")] = None,
    dimensions: Annotated[int | None, typer.Option(help="Keep this many principal axes; default: all.")] = None,
    limit: Annotated[int, typer.Option(min=2, help="Use this many of the training images at most.")] = 2000,
) -> None:
    """Learn a feature map from public images: features that are centred and projected lose less under noise."""
    with _errors():
        import numpy as np

        from fedopal_secure.data.datasets import load_dataset
        from fedopal_secure.encoding.feature_map import FeatureMap
        from fedopal_secure.vision.backbone import load_backbone
        from fedopal_secure.vision.features import extract_features

        if out.exists():
            raise InputError(f"{out} exists already: choose another file with --out")
        network = load_backbone(backbone, image_size)
        public = load_dataset(images, seed=0, limit=limit, transform=network.preprocess).train
        with _progress({"features": len(public)}) as report:
            taken = lambda done: report("features", done)  # noqa: E731
            features = extract_features(network, np.asarray(public.images), progress=taken)
        FeatureMap.from_public_features(features, dimensions).save(out)
        print(f"{out} holds the map of {len(public)} images: use it with --public-map", file=sys.stderr)


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
