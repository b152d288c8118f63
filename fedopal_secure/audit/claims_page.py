"""What a run of the claims leaves behind: the JSON of a machine, and the table of `docs/claims.md`."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from fedopal_secure.audit.claims import PAGES
from fedopal_secure.audit.nodes import path_of
from fedopal_secure.audit.verdicts import Judgement, counts
from fedopal_secure.core.errors import InputError
from fedopal_secure.runtimes.result import own_version

_BEGIN: Final = "<!-- table: written by `make audit` -->\n"
_END: Final = "<!-- end of table -->\n"


def to_json(judgements: Sequence[Judgement]) -> str:
    """All that a run found."""
    found = {
        "claims": [judgement.to_dict() for judgement in judgements],
        "counts": counts(judgements),
        "environment": {"python": platform.python_version(), "version": own_version()},
    }
    return json.dumps(found, indent=2, ensure_ascii=False)


def summary(judgements: Sequence[Judgement]) -> str:
    """How many claims have which verdict."""
    found = ", ".join(f"{verdict} {number}" for verdict, number in counts(judgements).items())
    return f"{len(judgements)} claims: {found}."


def evidence_words(judgement: Judgement) -> str:
    """The kind of evidence and how many tests there are: `attack: 4 tests, 4 controls`."""
    roles = (("test", judgement.tests), ("control", judgement.control))
    numbers = [(role, sum(found.tests for found in outcomes.values())) for role, outcomes in roles if outcomes]
    told = ", ".join(f"{number} {role}{'' if number == 1 else 's'}" for role, number in numbers)
    return f"{judgement.claim.evidence}: {told}" if told else judgement.claim.evidence


def page_frame(page: Path) -> tuple[str, str]:
    """What stands before and after a page's table; raises InputError if its two marks are not there, and OSError."""
    before, begin, rest = page.read_text(encoding="utf-8").partition(_BEGIN)
    _, end, after = rest.partition(_END)
    if not begin or not end:
        raise InputError(
            f"{page}: the table goes between {_BEGIN.strip()} and {_END.strip()}: write these lines into it"
        )
    return before + begin, end + after


def table(page: Path, root: Path, judgements: Sequence[Judgement]) -> str:
    """The claims as Markdown, with links that work from the page's folder."""

    def link(name: str, path: str) -> str:
        return f"[{name}]({Path(os.path.relpath(root / path, page.parent)).as_posix()})"

    lines = [
        summary(judgements),
        "",
        "| claim | what it says | against | it rests on | evidence | found |",
        "|---|---|---|---|---|---|",
    ]
    for judgement in judgements:
        claim = judgement.claim
        # No backticks around ids: those are for assumptions.
        files = dict.fromkeys(path_of(name) for name in (*claim.tests, *claim.control))
        places = [link(Path(file).name, file) for file in files] + ([claim.reference] if claim.reference else [])
        found = "holds" if judgement.verdict == "holds" else f"**{judgement.verdict}**: {'; '.join(judgement.reasons)}"
        cells = (
            claim.id,
            claim.sentence,
            link(claim.who, f"{PAGES}/{claim.adversary}.md"),
            ", ".join(f"`{name}`" for name in claim.assumptions) or "nothing",
            f"{evidence_words(judgement)} ({', '.join(places)})" if places else evidence_words(judgement),
            found,
        )
        lines.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
    return "\n".join(lines) + "\n"
