"""The command line: each command reads its options, calls one function of the library, and prints what it found."""

from __future__ import annotations

import os

import typer

from fedopal_secure.cli import audit, data, he, keys, models, private, simulate, sweep, verify

# Before torch is loaded: threads that wait sleep. Spinning, they take the cores from whatever else runs on the machine.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="One-shot federated image classification in which the server learns sums and nothing else.",
)
app.command()(simulate.demo)
app.command()(simulate.simulate)
app.command("check-data")(data.check_data)
app.command()(private.privacy)
app.command("public-map")(private.public_map)
app.command()(sweep.sweep)
app.command()(models.predict)
app.command()(models.evaluate)

keys_app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Long-term identities of clients and servers.")
keys_app.command()(keys.new)
keys_app.command()(keys.show)
app.add_typer(keys_app, name="keys")

he_app = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="The key authority of encrypted sums (protocols bfv and ckks)."
)
he_app.command()(he.keygen)
he_app.command()(he.decrypt)
he_app.command()(he.show)
app.add_typer(he_app, name="he")

audit_app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Check a round from its transcript; run the tests behind every claim.",
)
audit_app.command()(audit.claims)
audit_app.command()(verify.verify)
app.add_typer(audit_app, name="audit")
