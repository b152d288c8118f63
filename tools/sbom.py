"""Write what the package runs on, as installed here, as a software bill of materials: CycloneDX 1.6 in JSON.

It lists the package and, with their dependencies, the distributions that it and its extras ask for; not the tools of
development. The same environment gives the same bytes. `make sbom` calls it.
"""

from __future__ import annotations

import argparse
import sys
import uuid
from collections.abc import Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.model.license import DisjunctiveLicense, LicenseExpression
from cyclonedx.output.json import JsonV1Dot6
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packageurl import PackageURL
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

PACKAGE, EXTRAS = "fedopal-secure", ("all",)


def requirements(installed: Distribution, extra: str) -> Iterator[Requirement]:
    """What a distribution asks for on this platform, by itself (extra "") or for one of its extras."""
    for text in installed.requires or ():
        requirement = Requirement(text)
        if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
            yield requirement


def runtime(package: str, extras: tuple[str, ...]) -> dict[str, set[str]]:
    """The distributions below a package, and itself, each with those it asks for; raises PackageNotFoundError."""
    asked: dict[str, set[str]] = {}
    seen: set[tuple[str, str]] = set()
    todo: list[tuple[str, str]] = [(canonicalize_name(package), extra) for extra in ("", *extras)]
    while todo:
        name, extra = todo.pop()
        if (name, extra) in seen:
            continue
        seen.add((name, extra))
        below = asked.setdefault(name, set())
        for requirement in requirements(distribution(name), extra):
            other = canonicalize_name(requirement.name)
            todo += [(other, more) for more in ("", *requirement.extras)]
            if other != name:  # an extra that is made of others asks for its own package
                below.add(other)
    return asked


def licenses(installed: Distribution) -> list[LicenseExpression] | list[DisjunctiveLicense]:
    """What a distribution says of its licence: as an expression, in a short text, or by classifiers."""
    for expression in installed.metadata.get_all("License-Expression") or ():
        return [LicenseExpression(expression)]
    said = [text for text in installed.metadata.get_all("License") or () if len(text) < 80]
    classified = [text for text in installed.metadata.get_all("Classifier") or () if text.startswith("License ::")]
    return [DisjunctiveLicense(name=text.rpartition(" :: ")[2]) for text in said or classified]


def component(name: str) -> Component:
    """An installed distribution as CycloneDX has it."""
    installed = distribution(name)
    return Component(
        name=installed.metadata["Name"],
        version=installed.version,
        type=ComponentType.LIBRARY,
        bom_ref=f"{name}=={installed.version}",
        purl=PackageURL("pypi", name=name, version=installed.version),
        description=installed.metadata["Summary"],
        licenses=licenses(installed),
    )


def bill(package: str, extras: tuple[str, ...]) -> str:
    """The bill of materials as JSON; raises ValueError if it does not fit the schema."""
    asked = runtime(package, extras)
    root = canonicalize_name(package)
    parts = {name: component(name) for name in sorted(asked)}
    bom = Bom(components=[part for name, part in parts.items() if name != root])
    bom.metadata.component = parts[root]
    bom.metadata.timestamp = None  # type: ignore[assignment]  # else no two bills would be the same
    bom.serial_number = uuid.uuid5(uuid.NAMESPACE_URL, " ".join(str(part.purl) for part in parts.values()))
    for name, below in asked.items():
        bom.register_dependency(parts[name], [parts[other] for other in below])
    text: str = JsonV1Dot6(bom).output_as_string(indent=2)
    wrong = JsonStrictValidator(SchemaVersion.V1_6).validate_str(text)
    if wrong is not None:
        raise ValueError(f"not valid CycloneDX: {wrong}")
    return text


def main() -> None:
    """Write the bill to a file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("dist/sbom.cdx.json"))
    out = parser.parse_args().out
    try:
        text = bill(PACKAGE, EXTRAS)
    except PackageNotFoundError as error:
        sys.exit(f'{error.name} is not installed: pip install -e ".[all,dev]"')
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(text + "\n", encoding="utf-8")
    print(f"wrote {out}")


if __name__ == "__main__":
    main()
