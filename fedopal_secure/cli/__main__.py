"""`python -m fedopal_secure.cli`, where the script `fedopal-secure` is not on the path."""

from __future__ import annotations

from fedopal_secure.cli import app

app()
