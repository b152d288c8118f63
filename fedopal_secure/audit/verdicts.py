"""Judge claims by what their tests did and by whether the code is still the code that was reviewed.

fails: a test or a control failed, or is not there. unevidenced: one was skipped, or the claim has no evidence.
stale: all passed, and the code is not as reviewed. holds: all passed, and it is. Where several apply the first of them
is the verdict, and the reasons say all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from fedopal_secure.audit.claims import NEVER, Claim, code_hash
from fedopal_secure.audit.evidence import Outcome, run_tests

Verdict = Literal["holds", "fails", "unevidenced", "stale"]
VERDICTS: Final[tuple[Verdict, ...]] = ("holds", "fails", "unevidenced", "stale")

_VERBS: Final = {"failed": "failed", "skipped": "was skipped", "missing": "is missing"}


@dataclass(frozen=True)
class Judgement:
    """A claim, its verdict, why it does not hold, and what became of each test and control that it names."""

    claim: Claim
    verdict: Verdict
    reasons: tuple[str, ...]
    tests: dict[str, Outcome]
    control: dict[str, Outcome]

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it: the claim's own fields, then what was found."""
        return self.claim.model_dump(mode="json") | {
            "verdict": self.verdict,
            "reasons": list(self.reasons),
            "tests": _plain(self.tests),
            "control": _plain(self.control),
        }


def judge_all(root: Path, claims: Sequence[Claim]) -> tuple[Judgement, ...]:
    """Run what these claims name, once, and judge each; raises InputError if pytest cannot start."""
    names = dict.fromkeys(name for claim in claims for name in (*claim.tests, *claim.control))
    outcomes = run_tests(root, names)
    return tuple(judge(root, claim, outcomes) for claim in claims)


def judge(root: Path, claim: Claim, outcomes: Mapping[str, Outcome]) -> Judgement:
    """One claim, by what became of the tests that it names."""
    tests = {name: outcomes[name] for name in claim.tests}
    control = {name: outcomes[name] for name in claim.control}
    failed: list[str] = []
    lacking: list[str] = []
    # A test that is its own control is told of once.
    for name, found in (control | tests).items():
        if found.kind != "passed":
            said = f"{'test' if name in tests else 'control'} {name} {_VERBS[found.kind]}: {found.reason}"
            (lacking if found.kind == "skipped" else failed).append(said)
    if claim.evidence == "none":
        lacking.append("there is no evidence")
    changed = _changes(root, claim)
    verdict: Verdict = "fails" if failed else "unevidenced" if lacking else "stale" if changed else "holds"
    return Judgement(claim, verdict, (*failed, *lacking, *changed), tests, control)


def counts(judgements: Sequence[Judgement]) -> dict[Verdict, int]:
    """How many claims have each verdict, all four of them."""
    found = Counter(judgement.verdict for judgement in judgements)
    return {verdict: found[verdict] for verdict in VERDICTS}


def _plain(outcomes: dict[str, Outcome]) -> list[dict[str, Any]]:
    return [
        {"name": name, "outcome": found.kind, "tests": found.tests, "reason": found.reason}
        for name, found in outcomes.items()
    ]


def _changes(root: Path, claim: Claim) -> list[str]:
    """How the code differs from what was reviewed."""
    missing = [name for name in claim.code if not (root / name).is_file()]
    if missing:
        return [f"reviewed file {name} is missing" for name in missing]
    if not claim.code or code_hash(root, claim.code) == claim.reviewed:
        return []
    if claim.reviewed == NEVER:
        return ["nobody has reviewed the code yet"]
    return [f"changed since it was reviewed: {', '.join(claim.code)}"]
