"""tools/sbom.py: the bill lists what runs, as installed, without the tools of development, the same every time."""

from __future__ import annotations

import json
from importlib.metadata import PackageNotFoundError, version

import pytest

from tools.sbom import EXTRAS, PACKAGE, bill, runtime


def install(folder, name, *requires, extras=(), license_line="License-Expression: MIT"):
    """What installers leave of a distribution, as far as a bill reads it."""
    at = folder / f"{name.replace('-', '_')}-1.2.dist-info"
    at.mkdir()
    lines = ["Metadata-Version: 2.4", f"Name: {name}", "Version: 1.2", license_line]
    lines += [f"Provides-Extra: {extra}" for extra in extras] + [f"Requires-Dist: {text}" for text in requires]
    (at / "METADATA").write_text("\n".join(lines) + "\n")


@pytest.fixture
def site(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def test_the_bill_lists_the_package_and_what_it_runs_on():
    bom = json.loads(bill(PACKAGE, EXTRAS))
    assert (bom["bomFormat"], bom["specVersion"]) == ("CycloneDX", "1.6")
    root = bom["metadata"]["component"]
    assert (root["name"], root["version"]) == (PACKAGE, version(PACKAGE))
    listed = {component["name"].lower(): component for component in bom["components"]}
    for name in ("cryptography", "numpy", "msgspec", "cffi"):
        assert listed[name]["version"] == version(name)
        assert listed[name]["purl"] == f"pkg:pypi/{name}@{version(name)}"
    assert not listed.keys() & {PACKAGE, "pytest", "ruff", "mypy", "hypothesis", "cyclonedx-python-lib"}
    below = {edge["ref"]: edge.get("dependsOn", []) for edge in bom["dependencies"]}
    assert f"cryptography=={version('cryptography')}" in below[root["bom-ref"]]
    assert below.keys() == {root["bom-ref"], *(component["bom-ref"] for component in bom["components"])}


def test_the_same_environment_gives_the_same_bytes():
    first = bill(PACKAGE, EXTRAS)
    assert bill(PACKAGE, EXTRAS) == first
    assert "timestamp" not in first


def test_extras_and_markers_decide_what_is_asked_for(site):
    install(
        site, "the-root", "Plain_One>=1", "optional; extra == 'more'", "never; python_version < '3'",
        "the_root[more]; extra == 'all'", "tool; extra == 'dev'", extras=("more", "all", "dev"),
    )  # fmt: skip
    install(site, "plain-one", "inner[deep]")
    install(site, "inner", "deepest; extra == 'deep'", "unasked; extra == 'other'", extras=("deep", "other"))
    install(site, "deepest", "plain-one")
    install(site, "optional")
    plain = {"plain-one": {"inner"}, "inner": {"deepest"}, "deepest": {"plain-one"}}
    assert runtime("the-root", ()) == {"the-root": {"plain-one"}, **plain}
    assert runtime("The.Root", ("all",)) == {"the-root": {"plain-one", "optional"}, "optional": set(), **plain}


def test_what_is_not_installed_is_named(site):
    install(site, "the-root", "gone-away")
    with pytest.raises(PackageNotFoundError, match="gone-away"):
        bill("the-root", ())


@pytest.mark.parametrize(
    ("line", "licenses"),
    [
        ("License-Expression: MIT OR Apache-2.0", [{"expression": "MIT OR Apache-2.0"}]),
        ("License: BSD", [{"license": {"name": "BSD"}}]),
        ("Classifier: License :: OSI Approved :: MIT License", [{"license": {"name": "MIT License"}}]),
        (f"License: {'whereas ' * 20}", None),
    ],
)
def test_licences_are_what_a_distribution_says(site, line, licenses):
    install(site, "the-root", license_line=line)
    assert json.loads(bill("the-root", ()))["metadata"]["component"].get("licenses") == licenses
