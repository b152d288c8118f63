"""Cost of this package's parts, each measured beside its peer in one run."""

from __future__ import annotations
