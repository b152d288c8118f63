"""The file of claims: what each says, against whom, on what evidence, and the hash of the code that was reviewed.

`threat_models/claims.toml` is a list of `[[claim]]` tables with the fields of `Claim`. `load_claims` refuses a file
that names an assumption, an adversary or a kind of evidence that there is not, in one line that says where.
"""

from __future__ import annotations

import hashlib
import re
import tomllib
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from fedopal_secure.audit.nodes import path_of
from fedopal_secure.core.errors import InputError
from fedopal_secure.federation.config import Hex32, load_toml

CLAIMS: Final = PurePosixPath("threat_models/claims.toml")
ASSUMPTIONS: Final = PurePosixPath("threat_models/assumptions.toml")
PAGES: Final = PurePosixPath("threat_models")

Evidence = Literal["property", "vector", "attack", "proof", "none"]

NEVER: Final = "0" * 64
"""The hash of a claim whose code nobody has reviewed yet."""

# Words that promise too much when they stand alone; what names such a thing (fedopal-secure) is no promise.
_PROMISE: Final = re.compile(
    r"(?<![\w-])(?:in)?(?:secure|security|securely|safe|safely|safety|confidential\w*)\b", re.I
)


def _is_inside(path: str) -> str:
    """The path of a file below the root, as it is written in one way only."""
    parts = PurePosixPath(path)
    if not path or parts.is_absolute() or ".." in parts.parts or str(parts) != path or path.startswith("-"):
        raise ValueError(f"{path!r} is no plain path below the repository's root")
    return path


def _is_test(node: str) -> str:
    """A pytest id, with or without its parameters."""
    file = _is_inside(path_of(node))
    if not file.endswith(".py") or not node.startswith(f"{file}::"):
        raise ValueError(f"{node!r} is no FILE.py::TEST")
    return node


def _distinct(names: tuple[str, ...]) -> tuple[str, ...]:
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"{twice[0]!r} is there twice")
    return names


def _one_line(text: str) -> str:
    return " ".join(text.split())


Tests = Annotated[tuple[Annotated[str, AfterValidator(_is_test)], ...], AfterValidator(_distinct)]
Files = Annotated[tuple[Annotated[str, AfterValidator(_is_inside)], ...], AfterValidator(_distinct)]


class Claim(BaseModel):
    """One claim. What it must have besides depends on its evidence, and is said by the error that misses it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: Annotated[
        str, Field(pattern="^[A-Z][A-Z0-9]*(-[A-Z0-9]+)*$", description="upper case, words joined by hyphens")
    ]
    sentence: Annotated[str, Field(pattern=r"\.\s*$"), AfterValidator(_one_line)]
    adversary: Annotated[str, Field(pattern="^[a-z][a-z0-9_]*$", description="a page threat_models/ADVERSARY.md")]
    assumptions: Annotated[tuple[str, ...], AfterValidator(_distinct), Field(description="ids of assumptions.toml")]
    evidence: Annotated[Evidence, Field(description="what kind of evidence there is")]
    tests: Annotated[Tests, Field(description="they pass while the claim holds")] = ()
    control: Annotated[Tests, Field(description="the defence is removed, and the attack works")] = ()
    reference: Annotated[str, Field(description="where the proof stands")] = ""
    code: Annotated[Files, Field(min_length=1, description="the files that were reviewed")]
    reviewed: Annotated[Hex32, Field(description="their hash, which `audit claims --review ID` writes; or NEVER")]

    @model_validator(mode="after")
    def _fits_its_evidence(self) -> Claim:
        kind, tested = self.evidence, self.evidence in ("property", "vector", "attack")
        if tested and not self.tests:
            raise ValueError(f"evidence {kind!r} needs tests")
        if kind in ("property", "attack") and not self.control:
            raise ValueError(f"evidence {kind!r} needs a control: a test in which the defence is removed")
        if not tested and (self.tests or self.control):
            raise ValueError(f"evidence {kind!r} has no tests; say 'property', 'vector' or 'attack'")
        if (kind == "proof") != bool(self.reference):
            raise ValueError(f"evidence {kind!r} {'needs a' if kind == 'proof' else 'has no'} reference")
        promise = _PROMISE.search(self.sentence)
        if promise and self.who not in self.sentence.lower():
            raise ValueError(f"the sentence says {promise[0]!r} without naming its adversary, {self.who!r}")
        return self

    @property
    def who(self) -> str:
        """The adversary in words."""
        return self.adversary.replace("_", " ")


def find_root(start: Path) -> Path:
    """The source tree around a folder, else the one that this module is in; raises InputError."""
    for folder in (start, *start.parents, Path(__file__).parents[2]):
        if (folder / CLAIMS).is_file() and (folder / "tests").is_dir():
            return folder
    raise InputError(
        f"claims are run in a source tree, and here is none with {CLAIMS} and tests/: clone the repository"
    )


def load_claims(root: Path) -> tuple[Claim, ...]:
    """All claims of a source tree, in the file's order; raises InputError."""
    path = root / CLAIMS
    tables = _tables(load_toml(path), str(path))
    claims = tuple(_parse(table, number, str(path)) for number, table in enumerate(tables, 1))
    assumptions = load_toml(root / ASSUMPTIONS)
    seen: set[str] = set()
    for claim in claims:
        where = f"{path}: claim {claim.id}"
        if claim.id in seen:
            raise InputError(f"{where}: there are two of this id")
        seen.add(claim.id)
        unknown = [name for name in claim.assumptions if not isinstance(assumptions.get(name), dict)]
        if unknown:
            raise InputError(f"{where}: assumption {unknown[0]!r} is not in {ASSUMPTIONS}")
        if claim.id in assumptions:
            raise InputError(f"{where}: an assumption has that id already")
        if not (root / PAGES / f"{claim.adversary}.md").is_file():
            raise InputError(f"{where}: adversary {claim.adversary!r} has no page {PAGES}/{claim.adversary}.md")
    return claims


def select(claims: Sequence[Claim], ids: Sequence[str]) -> tuple[Claim, ...]:
    """The claims of these ids in the file's order, all of them for none; raises InputError for an unknown one."""
    unknown = set(ids) - {claim.id for claim in claims}
    if unknown:
        near = get_close_matches(min(unknown).upper(), [claim.id for claim in claims], n=3, cutoff=0.4)
        hint = f"did you mean {' or '.join(near)}?" if near else f"they are in {CLAIMS}"
        raise InputError(f"there is no claim {min(unknown)!r}: {hint}")
    return tuple(claim for claim in claims if not ids or claim.id in ids)


def code_hash(root: Path, code: Sequence[str]) -> str:
    """SHA-256 over (path, bytes) of the files in order, each with its length in 8 bytes before it; raises OSError."""
    digest = hashlib.sha256()
    for name in code:
        for part in (name.encode(), (root / name).read_bytes()):
            digest.update(len(part).to_bytes(8, "big") + part)
    return digest.hexdigest()


def review(root: Path, ids: Sequence[str]) -> dict[str, str]:
    """Write the present hash of some claims' code into the file, for somebody who has read that code.

    Nothing else of the file changes. Returns the hashes by id; raises InputError, and OSError for a missing file.
    """
    path, claims = root / CLAIMS, load_claims(root)
    hashes = {claim.id: code_hash(root, claim.code) for claim in select(claims, ids)}
    text = path.read_bytes().decode()
    head, *tables = re.split(r"(?m)^(?=\[\[claim\]\])", text)
    for number, claim in enumerate(claims[: len(tables)]):
        if claim.id in hashes:
            tables[number] = re.sub(
                rf'(?m)^reviewed = "{claim.reviewed}"', f'reviewed = "{hashes[claim.id]}"', tables[number]
            )
    edited = "".join((head, *tables))
    wanted = tomllib.loads(text)
    for table in wanted["claim"]:
        table["reviewed"] = hashes.get(table["id"], table["reviewed"])
    if tomllib.loads(edited) != wanted:
        raise InputError(f'{path}: write [[claim]] and reviewed = "..." on lines of their own, then it can be edited')
    path.write_bytes(edited.encode())
    return hashes


def _tables(values: dict[str, Any], source: str) -> list[dict[str, Any]]:
    tables = values.get("claim")
    if set(values) != {"claim"} or not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise InputError(f"{source}: it holds [[claim]] tables and nothing else")
    return tables


def _parse(table: dict[str, Any], number: int, source: str) -> Claim:
    try:
        return Claim.model_validate(table)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        name = table.get("id") if isinstance(table.get("id"), str) else f"number {number}"
        said = str(first["msg"]).removeprefix("Value error, ")
        raise InputError(f"{source}: claim {name}: {f'{where!r}: ' if where else ''}{said}") from None
