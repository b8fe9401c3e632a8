"""Text to tokens and back, by the `tokenizers` library."""

from __future__ import annotations

from collections.abc import Sequence

from ...ir.errors import EngineError, InputError
from ...ir.extras import need
from .given import whole_numbers


class Tokenizer:
    """A tokenizer.json: `encode` gives tokens, `decode` text."""

    def __init__(self, text: str) -> None:
        need("tokenizers", "text of a language model")
        import tokenizers

        try:
            self._held = tokenizers.Tokenizer.from_str(text)
        except Exception as error:  # the library raises no narrower one
            raise EngineError(f"tokenizer.json of the engine is damaged: {error}") from error

    def encode(self, text: str) -> list[int]:
        """The tokens of a text; special tokens that it spells out are themselves."""
        if not isinstance(text, str):
            raise InputError(f"expected a text, got {type(text).__name__}")
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise InputError(f"the text holds {text[error.start]!r}, which is no character", hint="give it as UTF-8") from error
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
        text: str = self._held.decode(held, skip_special_tokens=not special)
        return text


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
