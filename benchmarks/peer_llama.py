"""llama.cpp through the C interface of a shared library (that of the package `xllamacpp`, or any other), as a model to score and time.

Source of the interface: llama.cpp's `include/llama.h`. Parameters are handed on as the library itself fills them in, but for the sizes
that begin them, which are checked to stand where they are written.
"""

from __future__ import annotations

import ctypes
import importlib.util
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

PIECE = 512
"""Tokens of a prompt that are read in one go, as llama.cpp does by default."""
_BEGIN = (512, 2048, 512, 1)
"""n_ctx, n_batch, n_ubatch and n_seq_max as the library gives them, with which its parameters of a context begin."""


class _Parameters(ctypes.Structure):
    """More bytes than any version has: a function that takes fewer by value reads the first ones."""

    _fields_ = (("words", ctypes.c_uint32 * 256),)


class _Batch(ctypes.Structure):
    _fields_ = (
        ("count", ctypes.c_int32),
        ("token", ctypes.POINTER(ctypes.c_int32)),
        ("embedding", ctypes.POINTER(ctypes.c_float)),
        ("position", ctypes.POINTER(ctypes.c_int32)),
        ("sequences", ctypes.POINTER(ctypes.c_int32)),
        ("sequence", ctypes.POINTER(ctypes.POINTER(ctypes.c_int32))),
        ("is_wanted", ctypes.POINTER(ctypes.c_int8)),
    )


_Log = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)


def library_file() -> Path | None:
    """The library in the package `xllamacpp`; None where it is not installed."""
    found = importlib.util.find_spec("xllamacpp")
    if found is None or found.origin is None:
        return None
    return next(Path(found.origin).parent.glob("*.so"), None)


class LlamaCpp:
    """A GGUF file in llama.cpp: `logits(tokens)` as our sequences have it, of which only what is not in the cache is read."""

    def __init__(self, model: Path, context: int, threads: int, library: Path) -> None:
        self._library = library_of(library)
        given: Any = self._library.llama_context_default_params()
        if tuple(given.words[:4]) != _BEGIN:
            raise SystemExit(f"{library.name}: parameters of a context begin with {list(given.words[:4])}, expected {list(_BEGIN)}")
        self._model = self._library.llama_model_load_from_file(bytes(model), self._library.llama_model_default_params())
        if not self._model:
            raise SystemExit(f"llama.cpp cannot load {model}")
        given.words[0], given.words[1], given.words[2] = context, PIECE, PIECE
        self._context = self._library.llama_init_from_model(self._model, given)
        if not self._context:
            raise SystemExit(f"llama.cpp cannot make a context of {context} tokens")
        self._library.llama_set_n_threads(self._context, threads, threads)
        words = self._library.llama_vocab_n_tokens(self._library.llama_model_get_vocab(self._model))
        self._batch: Any = self._library.llama_batch_init(PIECE, 0, 1)
        self.facts = SimpleNamespace(vocabulary=words, context=context, chunk=PIECE, begin=())
        self.tokens: list[int] = []

    def close(self) -> None:
        """Give its memory back."""
        self._library.llama_batch_free(self._batch)
        self._library.llama_free(self._context)
        self._library.llama_model_free(self._model)

    def sequence(self) -> LlamaCpp:
        """Its one sequence, with nothing in it."""
        self.keep(0)
        return self

    def keep(self, count: int) -> None:
        """Forget all but the first tokens."""
        self._library.llama_memory_seq_rm(self._library.llama_get_memory(self._context), 0, count, -1)
        self.tokens = self.tokens[:count]

    def logits(self, tokens: Sequence[int]) -> np.ndarray[Any, Any]:
        """f32[vocabulary] behind the tokens."""
        row: np.ndarray[Any, Any] = self.all_logits(tokens, 1)[0]
        return row

    def all_logits(self, tokens: Sequence[int], last: int) -> np.ndarray[Any, Any]:
        """f32[last, vocabulary] behind the last of the tokens."""
        same = next((n for n, (a, b) in enumerate(zip(self.tokens, tokens, strict=False)) if a != b), min(len(self.tokens), len(tokens)))
        first, found = min(same, len(tokens) - last), []
        self.keep(first)
        for begin in range(first, len(tokens), PIECE):
            part = tokens[begin : begin + PIECE]
            wanted = range(max(len(tokens) - last - begin, 0), len(part))
            self._decode(part, begin, wanted)
            found += [np.ctypeslib.as_array(self._row(n), (self.facts.vocabulary,)).copy() for n in wanted]
        self.tokens = list(tokens)
        return np.stack(found)

    def _decode(self, tokens: Sequence[int], first: int, wanted: range) -> None:
        batch = self._batch
        batch.count = len(tokens)
        for n, token in enumerate(tokens):
            batch.token[n], batch.position[n], batch.sequences[n], batch.is_wanted[n] = token, first + n, 1, n in wanted
            batch.sequence[n][0] = 0
        status = self._library.llama_decode(self._context, batch)
        if status:
            raise SystemExit(f"llama_decode of {len(tokens)} tokens at {first} ended with status {status}")

    def _row(self, number: int) -> Any:
        return self._library.llama_get_logits_ith(self._context, number)


def library_of(file: Path) -> Any:
    """The library with its functions declared; it tells nothing but errors."""
    library: Any = ctypes.CDLL(str(file))
    pointer, integer = ctypes.c_void_p, ctypes.c_int32
    declared: dict[str, tuple[Any, tuple[Any, ...]]] = {
        "llama_model_default_params": (_Parameters, ()),
        "llama_context_default_params": (_Parameters, ()),
        "llama_model_load_from_file": (pointer, (ctypes.c_char_p, _Parameters)),
        "llama_init_from_model": (pointer, (pointer, _Parameters)),
        "llama_set_n_threads": (None, (pointer, integer, integer)),
        "llama_model_get_vocab": (pointer, (pointer,)),
        "llama_vocab_n_tokens": (integer, (pointer,)),
        "llama_get_memory": (pointer, (pointer,)),
        "llama_memory_seq_rm": (ctypes.c_bool, (pointer, integer, integer, integer)),
        "llama_batch_init": (_Batch, (integer, integer, integer)),
        "llama_batch_free": (None, (_Batch,)),
        "llama_decode": (integer, (pointer, _Batch)),
        "llama_get_logits_ith": (ctypes.POINTER(ctypes.c_float), (pointer, integer)),
        "llama_free": (None, (pointer,)),
        "llama_model_free": (None, (pointer,)),
        "llama_print_system_info": (ctypes.c_char_p, ()),
        "llama_log_set": (None, (_Log, pointer)),
    }
    for name, (result, arguments) in declared.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    library.llama_log_set(_SILENT, None)
    return library


_SILENT = _Log(lambda level, text, data: None)


def described(file: Path) -> str:
    """The instruction sets that the library was built for, in its own words."""
    text: bytes = library_of(file).llama_print_system_info()
    return " ".join(text.decode(errors="replace").split())
