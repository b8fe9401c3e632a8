"""Chat templates: a conversation as the text that a model was trained on. They come with models, so a child process runs them."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ...ir.errors import InputError, ModelError
from ...ir.extras import need

WORKER = Path(__file__).with_name("template_worker.py")
LONGEST_WAIT = 60.0

Message = Mapping[str, Any]


def render(template: str, messages: Sequence[Message], named: Mapping[str, str] = MappingProxyType({}), answer: bool = True) -> str:
    """The conversation as text, with the beginning of an answer behind it; ModelError where the template fails or does not end.

    `named` are special tokens as templates know them, like `bos_token`.
    """
    need("jinja2", "a chat template")
    # What transformers gives every template, tools and documents among it, of which there are none.
    given = {
        "messages": [dict(message) for message in messages],
        "tools": None,
        "documents": None,
        "add_generation_prompt": answer,
        **named,
    }
    try:
        data = json.dumps({"template": template, "given": given}).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(f"a message holds what a chat template cannot be given: {error}") from error
    try:
        done = subprocess.run([sys.executable, "-I", str(WORKER)], input=data, capture_output=True, timeout=LONGEST_WAIT, check=False)
    except subprocess.TimeoutExpired as error:
        raise _failure("it does not end") from error
    except OSError as error:
        raise _failure(f"its process cannot be started: {error.strerror or error}") from error
    if done.returncode in (-signal.SIGXCPU, -signal.SIGKILL):
        raise _failure("it does not end")
    try:
        said = json.loads(done.stdout)
    except ValueError as error:
        raise _failure(f"its process ended with status {done.returncode}") from error
    if "refused" in said:
        raise InputError(f"the chat template refuses the conversation: {said['refused']}")
    if "failed" in said:
        raise _failure(said["failed"])
    text: str = said["text"]
    return text


def is_message(message: Any) -> bool:
    """Whether something is a message: a mapping whose `role` and `content` are texts."""
    return isinstance(message, Mapping) and isinstance(message.get("role"), str) and isinstance(message.get("content"), str)


def _failure(why: str) -> ModelError:
    return ModelError(f"the model's chat template fails: {why}", hint="give the prompt as it stands: raw=True, --raw")
