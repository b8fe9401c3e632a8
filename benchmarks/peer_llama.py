"""llama.cpp through the C interface of a shared library, as a model to score and time.

Libraries are those of the packages `llama-cpp-python`, which is built from its source for the machine, and `xllamacpp`, whose wheel
is built for AVX2; or any other. Source of the interface: llama.cpp's `include/llama.h`. Parameters differ from version to version, so
they are handed on as the library itself fills them in, but for the sizes that begin them, which are checked to stand where they are
written, before and, by what the context says of itself, behind.
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
_SAID = ("n_ctx", "n_batch", "n_ubatch", "n_seq_max", "n_threads", "n_threads_batch")
"""What a context says of itself."""


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


LIBRARIES = {"llama.cpp native": ("llama_cpp", "lib/libllama.*"), "llama.cpp AVX2": ("xllamacpp", "*.so")}
"""Where a package has its library, by what the contender is called: built here for this machine, and a wheel for AVX2."""


def libraries() -> dict[str, Path]:
    """The libraries of the packages that are installed."""
    found = {}
    for name, (package, pattern) in LIBRARIES.items():
        spec = importlib.util.find_spec(package)
        file = None if spec is None or spec.origin is None else min(Path(spec.origin).parent.glob(pattern), default=None)
        if file is not None:
            found[name] = file
    return found


def library_file() -> Path | None:
    """The library that is built for the machine, or that of the wheel; None where neither is installed."""
    return next(iter(libraries().values()), None)


class LlamaCpp:
    """A GGUF file in llama.cpp: `logits(tokens)` as our sequences have it, of which only what is not in the cache is read.

    With several `sequences` of `context` tokens each, `copy` gives all of them what the first holds, and `together` reads a token of
    each in one call.
    """

    def __init__(self, model: Path, context: int, threads: int, library: Path, sequences: int = 1) -> None:
        self._library = library_of(library)
        given: Any = self._library.llama_context_default_params()
        if tuple(given.words[:4]) != _BEGIN:
            raise SystemExit(f"{library.name}: parameters of a context begin with {list(given.words[:4])}, expected {list(_BEGIN)}")
        self._model = self._library.llama_model_load_from_file(bytes(model), self._library.llama_model_default_params())
        if not self._model:
            raise SystemExit(f"llama.cpp cannot load {model}")
        whole = -(-context // 256) * 256 * sequences  # a sequence's share of it is a whole number of 256
        given.words[0], given.words[1], given.words[2], given.words[3] = whole, PIECE, PIECE, sequences
        self._context = self._library.llama_init_from_model(self._model, given)
        if not self._context:
            raise SystemExit(f"llama.cpp cannot make a context of {sequences} times {context} tokens")
        self._library.llama_set_n_threads(self._context, threads, threads)
        said = tuple(getattr(self._library, f"llama_{name}")(self._context) for name in _SAID)
        if said != (*given.words[:4], threads, threads):
            raise SystemExit(f"{library.name}: the context says {said} of {_SAID}, expected {(*given.words[:4], threads, threads)}")
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

    def copy(self, sequences: int) -> None:
        """Give the other sequences what the first one holds."""
        memory = self._library.llama_get_memory(self._context)
        for other in range(1, sequences):
            self._library.llama_memory_seq_rm(memory, other, -1, -1)
            self._library.llama_memory_seq_cp(memory, 0, other, -1, -1)

    def together(self, tokens: Sequence[int], place: int) -> list[int]:
        """The likeliest token behind each of these, one of each sequence, which all hold `place` tokens before it."""
        memory = self._library.llama_get_memory(self._context)
        for number in range(len(tokens)):
            self._library.llama_memory_seq_rm(memory, number, place, -1)
        self.tokens = []  # the first sequence holds other tokens now than those that were told
        self._decode(tokens, [place] * len(tokens), range(len(tokens)), range(len(tokens)))
        rows = (np.ctypeslib.as_array(self._row(number), (self.facts.vocabulary,)) for number in range(len(tokens)))
        return [int(row.argmax()) for row in rows]

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
            self._decode(part, range(begin, begin + len(part)), [0] * len(part), wanted)
            found += [np.ctypeslib.as_array(self._row(n), (self.facts.vocabulary,)).copy() for n in wanted]
        self.tokens = list(tokens)
        return np.stack(found)

    def _decode(self, tokens: Sequence[int], places: Sequence[int], sequences: Sequence[int], wanted: range) -> None:
        batch = self._batch
        batch.count = len(tokens)
        for n, (token, place, sequence) in enumerate(zip(tokens, places, sequences, strict=True)):
            batch.token[n], batch.position[n], batch.sequences[n], batch.is_wanted[n] = token, place, 1, n in wanted
            batch.sequence[n][0] = sequence
        status = self._library.llama_decode(self._context, batch)
        if status:
            raise SystemExit(f"llama_decode of {len(tokens)} tokens at {places[0]} ended with status {status}")

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
        "llama_memory_seq_cp": (None, (pointer, integer, integer, integer, integer)),
        **{f"llama_{name}": (ctypes.c_uint32 if name in _SAID[:4] else integer, (pointer,)) for name in _SAID},
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
