"""The digest of plans: what was compiled for them carries it, so that neither runs with another's."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping

from .json import to_json
from .plan import Plan


def plan_bytes(plan: Plan) -> bytes:
    """A plan as engine files hold it: JSON, of which equal plans have the same bytes."""
    return json.dumps(to_json(plan), sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def digest_of(plans: Mapping[str, Plan]) -> str:
    """sha256 of the plans of an engine's functions, in order, in hexadecimal."""
    return digest_of_bytes((name, plan_bytes(plan)) for name, plan in plans.items())


def digest_of_bytes(plans: Iterable[tuple[str, bytes]]) -> str:
    """The same of plans as files hold them."""
    digests = [[name, hashlib.sha256(data).hexdigest()] for name, data in plans]
    return hashlib.sha256(json.dumps(digests).encode()).hexdigest()
