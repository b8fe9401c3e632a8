"""The options of all commands that open or write what others made: whose signatures are believed, and whose key signs."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from .frame import READABLE

Function = Callable[..., Any]


def trusted_key_option(function: Function) -> Function:
    """--trusted-key FILE, any number of times, and no other; the command gets `trust`."""
    return _with_trust(_trusted(function))


def key_options(function: Function) -> Function:
    """--trusted-key FILE and --signing-key FILE; the command gets `trust`."""
    return _with_trust(_signing(_trusted(function)))


def _trusted(function: Function) -> Function:
    text = "Refuse what none of these Ed25519 public keys signed (repeatable; PEM, hex or raw)."
    return click.option("--trusted-key", "trusted_key", type=READABLE, multiple=True, metavar="FILE", help=text)(function)


def _signing(function: Function) -> Function:
    text = "Sign what is written with this Ed25519 private key (PEM, hex or raw)."
    return click.option("--signing-key", "signing_key", type=READABLE, metavar="FILE", help=text)(function)


def _with_trust(function: Function) -> Function:
    @functools.wraps(function)
    def call(*arguments: Any, trusted_key: tuple[Path, ...] = (), signing_key: Path | None = None, **rest: Any) -> Any:
        from ..engines.trust import Trust

        return function(*arguments, trust=Trust.of(trusted_key, signing_key), **rest)

    return call
