"""`audit verify`: check a round from its transcript."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from fedopal_secure.cli.common import ABORTED, errors, fail, new_console

if TYPE_CHECKING:
    from fedopal_secure.audit.verify import Verification


def verify(
    run: Annotated[Path, typer.Argument(help="The folder that a run left, or its transcript/ alone.")],
    trust: Annotated[
        Path,
        typer.Option(
            metavar="FILE",
            help="Whom you trust, and what was agreed: a policy with identities and servers (trust.toml of a run).",
        ),
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print what was found as JSON and nothing else.")] = False,
) -> None:
    """Check a round from its transcript: signatures, roster, rules, sums, head and model.

    The server is run again on what the clients sent, and every word of it is compared; sums are unmasked again, and the
    head is solved again. Prints OK, or the first message that is wrong and who is to blame; the exit code is then 3.
    A run's own trust.toml says what its simulated clients enforced: get identities from those who own them.
    """
    with errors():
        from fedopal_secure.audit.verify import verify as check
        from fedopal_secure.federation.config import PolicyConfig, load_toml, parse_config
        from fedopal_secure.federation.transcript import SERVER

        policy = parse_config(PolicyConfig, load_toml(trust), str(trust))
        console = new_console(stderr=True)
        columns = (TextColumn("replay"), BarColumn(), MofNCompleteColumn(), TextColumn("messages"), TimeElapsedColumn())
        with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
            bar = progress.add_task("replay", total=None)
            found = check(run, policy, lambda done, total: progress.update(bar, completed=done, total=total))
    names = {identity: name for name, identity in (*policy.identities.items(), *policy.servers.items())}

    def name(party: str) -> str:
        return names.get(party, party[:12] if len(party) == 64 else party)

    if as_json:
        print(json.dumps(asdict(found), indent=2))
    else:
        _print(found, name)
    if found.finding is not None:
        where = "" if found.finding.entry is None else f"entry {found.finding.entry}: "
        blame = ", ".join("the server" if party == SERVER else name(party) for party in found.finding.blame)
        fail(f"{where}{found.finding.reason}." + (f" To blame: {blame}" if blame else ""), ABORTED)


def _print(found: Verification, name: Callable[[str], str]) -> None:
    table = Table("session", "protocol", "summed over", "dropped", "threshold")
    for session in found.sessions:
        dropped = ", ".join(map(name, session.dropped)) or "nobody"
        over = f"{len(session.survivors)} clients"
        table.add_row(session.name, session.protocol, over, dropped, str(session.threshold or ""))
    console = new_console(file=sys.stdout)
    if found.sessions:
        console.print(table)
    if found.ok:
        same = "bit for bit" if not found.difference else f"up to {found.difference:.1g} of its size"
        signer = name(found.server)
        print(f"OK: {found.entries} messages, signed by {signer}; the head is that of the sums, {same}.")
        for session in found.sessions:
            print(f"sum of {session.name}: {session.total}")
        print(f"transcript: {found.head}\nmodel: {found.model}")
    for note in found.noted:
        print(f"noted: {name(note.client)}: {note.reason}" + (f" ({name(note.holder)})" if note.holder else ""))
    if found.ok:
        print("not checked, because a transcript does not show it:")
        for line in found.unchecked:
            print(f"- {line}")
