"""`ourcc cache`: the tuning stores, one line an action."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import click

from ...ir.errors import UsageError
from ...ir.spelling import nearest
from ..engines.trust import NOBODY_ASKED, Trust
from ..options import CacheOptions
from .frame import command as frame
from .main import CommandGroup
from .output import print_report, show_progress
from .trust import key_options, trusted_key_option


@dataclass(frozen=True)
class Action:
    """One action on the stores; `argument` is its name in the usage line."""

    help: str
    argument: str = ""
    count: Literal["none", "optional", "one", "several"] = "none"
    keys: Literal["both", "trusted", "none"] = "both"
    """Which options of keys have an effect: what writes records signs them, what reads them asks who signed them."""


ACTIONS: dict[str, Action] = {
    "ls": Action("List the records of a store (default: all stores in use).", "STORE", "optional", "trusted"),
    "du": Action("Show how much a store holds.", "STORE", "optional", "none"),
    "why": Action(
        "Say why a kernel of the latest build (or ENGINE:KERNEL) was, or was not, served by the stores.", "KERNEL", "one", "trusted"
    ),
    "push": Action("Copy the local records to another store.", "STORE", "one"),
    "pull": Action("Copy another store's records to the local one.", "STORE", "one"),
    "merge": Action("Put the union of some stores' samples into the last one.", "SOURCE... DESTINATION", "several"),
    "verify": Action("Check digests and signatures of a store's records.", "STORE", "optional", "trusted"),
    "prune": Action("Remove records that no present compiler can use.", "STORE", "optional", "trusted"),
    "export": Action("Write the local records to one file.", "FILE", "one"),
    "import": Action("Read records from a file written by export.", "FILE", "one"),
}


class ActionTable(CommandGroup):
    """A group whose error for an unknown action names the nearest."""

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        if args and not args[0].startswith("-") and args[0] not in ACTIONS:
            help_text = nearest(args[0], ACTIONS) or f"expected one of {', '.join(ACTIONS)}"
            raise click.UsageError(f"unknown cache action: got {args[0]!r}; {help_text}", ctx)
        return super().resolve_command(ctx, args)


_KEYS = {"both": key_options, "trusted": trusted_key_option, "none": lambda function: function}


def _make(name: str, action: Action) -> click.Command:
    arity = {"none": 0, "one": 1, "optional": -1, "several": -1}[action.count]

    @frame(name)
    @click.argument("arguments", nargs=arity, metavar=f"[{action.argument}]" if action.count == "optional" else action.argument)
    @_KEYS[action.keys]
    def run(arguments: str | tuple[str, ...], as_json: bool, trust: Trust = NOBODY_ASKED) -> None:
        given = (arguments,) if isinstance(arguments, str) else arguments
        _check_count(name, action, given)
        options = CacheOptions(name, given, trust=trust)
        from ..commands import cache as command

        with show_progress(as_json=as_json) as progress:
            report = command.cache(options, progress)
        print_report(report, as_json=as_json)

    run.help = run.short_help = action.help
    return run


def _check_count(name: str, action: Action, given: tuple[str, ...]) -> None:
    if action.count == "optional" and len(given) > 1:
        raise UsageError(f"cache {name}: got {len(given)} stores, expected at most one")
    if action.count == "several" and len(given) < 2:
        raise UsageError(f"cache {name}: got {len(given)} stores, expected at least one source and the destination")


command = ActionTable("cache", help="Look into the tuning stores.", context_settings={"help_option_names": ["-h", "--help"]})
"""The group that `ourcc` finds."""

for _name, _action in ACTIONS.items():
    command.add_command(_make(_name, _action))
