"""Renders one chat template in a process of its own: Jinja's sandbox, a few seconds, a bounded memory. Imports nothing of ours."""

import json
import resource
import sys
from datetime import datetime

from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

SECONDS, BYTES, CHARACTERS = 5, 1 << 30, 1 << 24
LONGEST = 500


class Refused(Exception):
    """The template itself refuses the conversation."""


def refuse(message: object) -> None:
    raise Refused(str(message))


def to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """As templates are written for: nothing is escaped for HTML, keys stay in order. Jinja's own filter is for pages."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


class Generation(Extension):
    """`{% generation %}`, which marks for training what the model says, and changes no text."""

    tags = {"generation"}  # noqa: RUF012 - an instance variable of the base class

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def rendered(template: str, given: dict[str, object]) -> str:
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, Generation])
    environment.filters["tojson"] = to_json
    environment.globals["raise_exception"] = refuse
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    text = environment.from_string(template).render(**given)
    if len(text) > CHARACTERS:
        raise ValueError(f"it makes a text of {len(text)} characters, at most {CHARACTERS} are taken")
    return text


def main() -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
    resource.setrlimit(resource.RLIMIT_AS, (BYTES, BYTES))
    asked = json.loads(sys.stdin.buffer.read())
    try:
        answer = {"text": rendered(asked["template"], asked["given"])}
    except Refused as error:
        answer = {"refused": str(error)[:LONGEST]}
    except MemoryError:
        answer = {"failed": f"it needs more than {BYTES >> 20} MB"}
    except Exception as error:  # noqa: BLE001 - whatever a template does is its own failure
        answer = {"failed": f"{type(error).__name__}: {error}"[:LONGEST]}
    sys.stdout.buffer.write(json.dumps(answer).encode())


if __name__ == "__main__":
    main()
