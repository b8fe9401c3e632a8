"""Text to tokens and back, by the `tokenizers` library."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

from ...ir.errors import EngineError, InputError
from ...ir.extras import need
from .given import whole_numbers

LONGEST = 500
"""Characters that are shown of what the library says."""


class Tokenizer:
    """A tokenizer.json: `encode` gives tokens, `decode` text."""

    def __init__(self, text: str) -> None:
        need("tokenizers", "text of a language model")
        import tokenizers

        with _failing("is damaged"):
            self._held = tokenizers.Tokenizer.from_str(text)
            # What a file was saved with for batches of one length is no part of a text.
            self._held.no_truncation()
            self._held.no_padding()

    def encode(self, text: str) -> list[int]:
        """The tokens of a text; special tokens that it spells out are themselves."""
        if not isinstance(text, str):
            raise InputError(f"expected a text, got {type(text).__name__}")
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise InputError(f"the text holds {text[error.start]!r}, which is no character", hint="give it as UTF-8") from error
        with _failing("cannot read the text"):
            found: list[int] = self._held.encode(text, add_special_tokens=False).ids
        return found

    def words(self) -> dict[str, int]:
        """All tokens by their own spelling."""
        found: dict[str, int] = self._held.get_vocab(with_added_tokens=True)
        return found

    def decode(self, tokens: Sequence[int], special: bool = False) -> str:
        """The text of tokens, without special ones unless asked for."""
        held = whole_numbers(tokens)
        if held and not 0 <= min(held) <= max(held) < 1 << 32:
            raise InputError(f"tokens from {min(held)} to {max(held)}: expected whole numbers from 0 on that a vocabulary has")
        with _failing("cannot write the tokens"):
            text: str = self._held.decode(held, skip_special_tokens=not special)
        return text


@contextlib.contextmanager
def _failing(what: str) -> Iterator[None]:
    """EngineError for whatever the library raises: it knows no narrower exception, and its panics are not even `Exception`."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit, GeneratorExit, MemoryError):
        raise
    except BaseException as error:
        raise EngineError(f"tokenizer.json of the engine {what}: {str(error)[:LONGEST]}") from error


class Pieces:
    """Text that grows with its tokens: what is final after each of them."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._tokens: list[int] = []
        self._first = 0
        self._told = 0

    def add(self, token: int) -> str:
        """The text that this token completes; none while a character is cut in two."""
        self._tokens.append(token)
        before = self._tokenizer.decode(self._tokens[self._first : self._told])
        whole = self._tokenizer.decode(self._tokens[self._first :])
        if len(whole) <= len(before) or whole.endswith("\N{REPLACEMENT CHARACTER}"):
            return ""
        self._first, self._told = self._told, len(self._tokens)
        return whole[len(before) :]

    def rest(self) -> str:
        """What is left at the end: the halves of characters."""
        before = self._tokenizer.decode(self._tokens[self._first : self._told])
        return self._tokenizer.decode(self._tokens[self._first :])[len(before) :]
