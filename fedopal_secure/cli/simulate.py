"""The commands that run rounds with simulated clients: demo and simulate."""

from __future__ import annotations

import sys
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from fedopal_secure.cli.common import DEVICE_HELP, errors, new_console, progress
from fedopal_secure.core.errors import InputError
from fedopal_secure.federation.config import PolicyConfig, SimulationConfig, load_toml, parse_config

if TYPE_CHECKING:
    from fedopal_secure.runtimes.result import Encryption, Privacy, Result


def demo(
    out: Annotated[Path | None, typer.Option(help="Leave the two-phase run in this folder.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the data split, tuning, keys and masks.")] = 0,
) -> None:
    """Twelve simulated clients with real digits train one classifier; five of them drop out on the way."""
    with errors():
        from fedopal_secure.runtimes.demo import Demo
        from fedopal_secure.runtimes.simulation import check_output

        if out is not None:
            check_output(out)
        prepared = Demo(seed)
        with progress(prepared.work) as report:
            found = prepared.run(out, report)
        console = new_console(width=None if sys.stdout.isatty() else 100)
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


def simulate(
    config: Annotated[Path | None, typer.Argument(help="A TOML file, as examples/simulate.toml; options win.")] = None,
    dataset: Annotated[
        str | None,
        typer.Option(help="'digits', a folder, FILE.csv, .npz or .tar, torchvision:NAME, or a name in $FEDOPAL_DATA."),
    ] = None,
    train_limit: Annotated[int | None, typer.Option(help="Use only this many training images.")] = None,
    skip_unreadable: Annotated[bool, typer.Option(help="Skip and count unreadable images.")] = False,
    backbone: Annotated[
        str | None,
        typer.Option(
            help="'embedded', 'timm:NAME[@FILE]' or 'open_clip:ARCH/TAG-or-FILE'; +joined:LAYERS or +random:COUNT "
            "behind it makes features other than [CLS].",
        ),
    ] = None,
    image_size: Annotated[int | None, typer.Option(help="Side of the backbone's input, pixels.")] = None,
    device: Annotated[str | None, typer.Option(help=DEVICE_HELP)] = None,
    compile_blocks: Annotated[
        bool, typer.Option("--compile", help="Tune with the blocks compiled by torch, which takes a minute first.")
    ] = False,
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
    protocol: Annotated[str | None, typer.Option(help="pairwise, plain, bfv or ckks (see docs/protocols.md).")] = None,
    masked: Annotated[
        bool, typer.Option(help="With bfv: mask vectors, too, so that only their sum is ever seen.")
    ] = False,
    drop: Annotated[
        list[str] | None,
        typer.Option(help="[SESSION.]PHASE:COUNT or [SESSION.]PHASE:ID,ID disappear before that phase. Repeatable."),
    ] = None,
    head: Annotated[
        str | None, typer.Option(metavar="KIND", help="ridge, ridge-normalised or lda: all come of the same sums.")
    ] = None,
    ridge: Annotated[
        str | None,
        typer.Option(
            "--lambda",
            help="auto, gcv, private-ridge, class-mean, a number, or relative:NUMBER (times R's mean diagonal).",
        ),
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
        "device": device,
        "compile": compile_blocks or None,
        "clients": clients,
        "corrupt": corrupt,
        "min_contributors": min_contributors,
        "alpha": alpha,
        "protocol": protocol,
        "masked": masked or None,
        "drop": drop or None,
        "seed": seed,
        "baselines": baselines or None,
    }
    wished = {"epsilon": epsilon, "delta": delta, "mode": privacy}
    with errors():
        solved = ({} if head is None else {"kind": head}) | ({} if ridge is None else _lambda(ridge))
        settings = _settings(config, options, prompts, wished, public_map, solved)
        rules = None if policy is None else parse_config(PolicyConfig, load_toml(policy), str(policy))
        from fedopal_secure.runtimes.simulation import Simulation, check_output, work

        if out is not None:
            check_output(out)
        simulation = Simulation(settings, rules)
    with errors(simulation.with_names):
        with progress(work(simulation)) as report:
            result = simulation.run(out, report).result
        if as_json:
            print(result.to_json())
        else:
            _print_result(result, out)


def _settings(
    config: Path | None,
    options: dict[str, Any],
    prompts: str | None,
    wished: dict[str, Any],
    public_map: str | None,
    head: dict[str, Any],
) -> SimulationConfig:
    """The file's values, or the defaults, with the options over them."""
    values = {} if config is None else load_toml(config)
    values |= {name: value for name, value in options.items() if value is not None}
    if prompts is not None:
        values["prompts"] = _prompts(_section(values, "prompts"), prompts)
    if any(value is not None for value in wished.values()):
        given = {name: value for name, value in wished.items() if value is not None}
        values["privacy"] = _section(values, "privacy") | given
        if "epsilon" not in values["privacy"]:
            raise InputError("--privacy and --delta need an --epsilon")
    if "dp_sgd" in _section(values, "prompts") and "privacy" not in values:
        raise InputError("prompts by DP-SGD are part of a private release: give an --epsilon (inf compares without)")
    if public_map is not None:
        if "privacy" not in values:
            raise InputError("--public-map helps under noise only: give an --epsilon too")
        values["features"] = _section(values, "features") | {"public": public_map}
    if head:
        values["head"] = _section(values, "head") | head
    return parse_config(SimulationConfig, values, "options" if config is None else str(config))


def _print_privacy(console: Console, privacy: Privacy) -> None:
    unit = "one image" if privacy.unit == "image" else f"one group of at most {privacy.unit_images} images"
    console.print(
        f"({privacy.epsilon:.4g}, {privacy.delta:g})-differential privacy for {unit}, {privacy.mode} noise, "
        f"{privacy.accountant} accountant; the noise in this sum is {privacy.realised:.2f} times what the claim needs"
    )
    console.print("it is a simulation: whoever has the seed in config.toml can take the noise off again")
    if privacy.mode == "central":
        console.print("the server saw the sums without noise: the claim is against those who see the model only")


def _print_encryption(console: Console, session: str, encryption: Encryption) -> None:
    e = encryption
    exact = (
        "exact by proof" if e.error_bound == 0 else f"off by {e.largest_error:.1g}, proven below {e.error_bound:.1g}"
    )
    console.print(
        f"{session}: {e.scheme} of degree {e.degree}, {e.modulus_bits} of {e.secure_bits} bits at 128-bit security; "
        f"decrypted entries are {exact}; {e.opening_bytes:,} bytes to the key authority and back"
    )


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
    relative = text.startswith("relative:")
    try:
        value = float(text.removeprefix("relative:"))
    except ValueError:
        return {"rule": text}
    return {"rule": "relative" if relative else "fixed", "value": value}


def _print_result(result: Result, out: Path | None) -> None:
    console = new_console()
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
    for session in result.sessions:
        if session.encryption is not None:
            _print_encryption(console, session.name, session.encryption)
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
        run, trust = quote(str(out)), quote(str(out / "trust.toml"))
        console.print(f"check it: fedopal-secure audit verify {run} --trust {trust}", soft_wrap=True)
