"""The commands of an auditor: audit claims."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich.table import Table
from rich.text import Text

from fedopal_secure.cli.common import ABORTED, errors, fail, new_console
from fedopal_secure.core.errors import InputError

if TYPE_CHECKING:
    from fedopal_secure.audit.verdicts import Judgement

_STYLES: Final = {"holds": "green", "fails": "bold red", "unevidenced": "bold magenta", "stale": "bold yellow"}


def claims(
    ids: Annotated[list[str] | None, typer.Argument(help="Claims to run, by id; all of them if none is named.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print what was found as JSON and nothing else.")] = False,
    write: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write the table into this Markdown page, between its two marks."),
    ] = None,
    review: Annotated[
        list[str] | None,
        typer.Option(metavar="ID", help="Run nothing: record that you have read this claim's code as it is now."),
    ] = None,
) -> None:
    """Run the tests that the claims of threat_models/claims.toml name, and judge claim by claim.

    A claim holds, fails (a test or a control failed or is not there), is unevidenced (one was skipped, or there is
    none) or stale (the code changed since somebody reviewed it). The exit code is 3 if a claim fails, and else 0.
    """
    with errors():
        from fedopal_secure.audit import claims as file
        from fedopal_secure.audit.claims_page import page_frame, table, to_json
        from fedopal_secure.audit.verdicts import judge_all

        root = file.find_root(Path.cwd())
        if review:
            if ids or as_json or write:
                raise InputError("--review stands alone: it runs nothing")
            for name, digest in file.review(root, review).items():
                print(f"{name} {digest}")
            return
        if ids and write:
            raise InputError("--write is for a run of all claims: name none")
        chosen = file.select(file.load_claims(root), ids or [])
        before, after = page_frame(write) if write else ("", "")
        found = judge_all(root, chosen)
        if write:
            write.write_text(before + table(write, root, found) + after, encoding="utf-8")
        if as_json:
            print(to_json(found))
        else:
            _print_claims(found)
    failing = [judgement.claim.id for judgement in found if judgement.verdict == "fails"]
    if failing:
        fail(f"{len(failing)} of {len(found)} claims fail: {', '.join(failing)}", ABORTED)


def _print_claims(found: Sequence[Judgement]) -> None:
    from fedopal_secure.audit.claims_page import evidence_words, summary

    table = Table("claim", "against", "evidence", "found")
    table.columns[0].no_wrap = table.columns[-1].no_wrap = True
    for judgement in found:
        verdict = Text(judgement.verdict, style=_STYLES[judgement.verdict])
        table.add_row(judgement.claim.id, judgement.claim.who, evidence_words(judgement), verdict)
    console = new_console(file=sys.stdout)
    console.print(table)
    for judgement in found:
        for reason in judgement.reasons:
            verdict = Text(judgement.verdict, style=_STYLES[judgement.verdict])
            console.print(Text.assemble(judgement.claim.id, " ", verdict, f": {reason}"), soft_wrap=True)
    console.print(summary(found), soft_wrap=True)
