"""What a language model is made of: sizes, rotation of positions, constants; read from GGUF metadata or a config.json."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ...ir.errors import ModelError, UnsupportedError
from ...runtime.language.facts import CHUNK

SCALINGS = ("none", "linear", "dynamic", "yarn", "llama3", "longrope")
KNOWN = frozenset(
    "rope_type type rope_theta partial_rotary_factor factor original_max_position_embeddings low_freq_factor high_freq_factor "
    "beta_fast beta_slow attention_factor short_factor long_factor".split()
)
"""What a scaling may say of itself: anything else would change it silently."""
LARGEST = 1 << 24
"""No size of a model is larger: what says so is damaged."""


@dataclass(frozen=True)
class Rotation:
    """Rotary position embedding: `size` numbers of each head turn, `base` ** (-2 i / size) radians a position.

    `scaling` says how frequencies change past `original` positions: by one of `SCALINGS`, as `transformers` defines them
    (modeling_rope_utils). `short` and `long` are the divisors that a file gives for each frequency.
    """

    size: int
    base: float = 10_000.0
    scaling: str = "none"
    factor: float = 1.0
    original: int = 0
    low: float = 1.0
    high: float = 4.0
    fast: float = 32.0
    slow: float = 1.0
    amplitude: float | None = None
    short: tuple[float, ...] = ()
    long: tuple[float, ...] = ()


@dataclass(frozen=True)
class Config:
    """The sizes of a decoder: `inner` is the width of its feed-forward blocks, `window` how far back attention looks, if bounded."""

    architecture: str
    layers: int
    width: int
    heads: int
    groups: int
    head: int
    inner: int
    vocabulary: int
    context: int
    epsilon: float
    rotation: Rotation | None
    window: int | None = None
    tied: bool = False


def config_of(kind: str, metadata: Mapping[str, Any], file: str) -> Config:
    """The config of a checkpoint of this kind: `gguf`, or `folder` with a config.json."""
    return (_Gguf if kind == "gguf" else _Json)(metadata, file).config()


@dataclass(frozen=True)
class _Said:
    """Facts of a checkpoint by name, each checked for its type and range."""

    data: Mapping[str, Any]
    file: str

    def bad(self, name: str, value: Any, expected: str) -> ModelError:
        return ModelError(f"{self.file}: {name} is {value!r}, expected {expected}")

    def integer(self, name: str, default: int | None = None, least: int = 1) -> int:
        value = self.data.get(name, default)
        if value is None:
            raise ModelError(f"{self.file}: {name} is missing")
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= LARGEST:
            raise self.bad(name, value, f"a whole number from {least} to {LARGEST}")
        return value

    def real(self, name: str, default: float | None = None) -> float:
        value = self.data.get(name, default)
        if value is None:
            raise ModelError(f"{self.file}: {name} is missing")
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < float("inf"):
            raise self.bad(name, value, "a number above 0")
        return float(value)

    def word(self, name: str, default: str) -> str:
        value = self.data.get(name, default)
        if not isinstance(value, str):
            raise self.bad(name, value, "a word")
        return value

    def divisors(self, name: str, count: int) -> tuple[float, ...]:
        """So many numbers above 0."""
        value = self.data.get(name)
        good = isinstance(value, list) and len(value) == count and all(isinstance(each, (int, float)) and 0 < each < 1e30 for each in value)
        if not good or not isinstance(value, list):
            raise self.bad(name, value, f"{count} numbers above 0")
        return tuple(float(each) for each in value)

    def scaling(self, name: str) -> str:
        if name not in SCALINGS:
            raise UnsupportedError(f"{self.file}: rotation is scaled by {name!r}, which is not supported, only {', '.join(SCALINGS)}")
        return name


class _Gguf(_Said):
    def config(self) -> Config:
        architecture = self.word("general.architecture", "")

        def of(name: str) -> str:
            return f"{architecture}.{name}"

        heads, width = self.integer(of("attention.head_count")), self.integer(of("embedding_length"))
        head = self.integer(of("attention.key_length"), width // heads)
        if self.integer(of("attention.value_length"), head) != head:
            raise UnsupportedError(f"{self.file}: keys and values of different sizes are not supported")
        if self.integer(of("expert_count"), 0, least=0):
            raise UnsupportedError(f"{self.file}: a mixture of experts is not supported")
        tokens = self.data.get("tokenizer.ggml.tokens")
        epsilon = of("attention.layer_norm_epsilon" if architecture == "gpt2" else "attention.layer_norm_rms_epsilon")
        window = self.integer(of("attention.sliding_window"), 0, least=0)
        return Config(
            architecture,
            self.integer(of("block_count")),
            width,
            heads,
            self.integer(of("attention.head_count_kv"), heads),
            head,
            self.integer(of("feed_forward_length")),
            self.integer(of("vocab_size"), len(tokens) if isinstance(tokens, list) else None),
            self.integer(of("context_length")),
            self.real(epsilon),
            None if architecture == "gpt2" else self._rotation(of, head),
            window or None,
        )

    def _rotation(self, of: Any, head: int) -> Rotation:
        scaling = self.scaling(self.word(of("rope.scaling.type"), "none"))
        return Rotation(
            self.integer(of("rope.dimension_count"), head),
            self.real(of("rope.freq_base"), 10_000.0),
            scaling,
            self.real(of("rope.scaling.factor"), 1.0),
            self.integer(of("rope.scaling.original_context_length"), self.integer(of("context_length"))),
            amplitude=self.real(of("rope.scaling.attn_factor")) if of("rope.scaling.attn_factor") in self.data else None,
        )


class _Json(_Said):
    def config(self) -> Config:
        if "model_type" not in self.data:
            raise ModelError(f"{self.file}: model_type is missing", hint="it says what the model is, like llama")
        architecture = self.word("model_type", "")
        self._check_coding()
        if architecture == "gpt2":
            return self._gpt2()
        heads, width = self.integer("num_attention_heads"), self.integer("hidden_size")
        if self.data.get("head_dim") is None and width % heads:
            raise ModelError(f"{self.file}: hidden_size is {width}, expected a multiple of the {heads} heads, or head_dim")
        head = self.integer("head_dim") if self.data.get("head_dim") is not None else width // heads
        if self.word("hidden_act", "silu") != "silu":
            raise UnsupportedError(f"{self.file}: hidden_act {self.data['hidden_act']!r} is not supported, only silu")
        if architecture.startswith("qwen") and self.data.get("use_sliding_window", False):
            raise UnsupportedError(f"{self.file}: use_sliding_window is not supported: some layers have a window, and others have not")
        said = None if self.data.get("sliding_window") is None else self.integer("sliding_window")
        window = said if architecture == "mistral" else None
        return Config(
            architecture,
            self.integer("num_hidden_layers"),
            width,
            heads,
            self.integer("num_key_value_heads", heads),
            head,
            self.integer("intermediate_size"),
            self.integer("vocab_size"),
            self._context(),
            self.real("rms_norm_eps", 1e-6),
            self._rotation(head),
            window,
            bool(self.data.get("tie_word_embeddings", False)),
        )

    def _check_coding(self) -> None:
        """Weights that others coded are not those of a size that the dtype says."""
        said = self.data.get("quantization_config")
        if said is not None:
            method = said.get("quant_method", "no method") if isinstance(said, Mapping) else said
            hint = "take the model that it was made of: ourcc build --quantize and ourcc plan --format code its weights"
            raise UnsupportedError(f"{self.file}: quantization_config {method!r:.40} is not supported, only weights in floats", hint=hint)

    def _gpt2(self) -> Config:
        if self.word("activation_function", "gelu_new") != "gelu_new":
            raise UnsupportedError(f"{self.file}: activation_function {self.data['activation_function']!r} is not supported, only gelu_new")
        if self.data.get("scale_attn_weights", True) is not True or self.data.get("scale_attn_by_inverse_layer_idx", False) is not False:
            raise UnsupportedError(f"{self.file}: scores of attention that are scaled otherwise are not supported")
        heads, width = self.integer("n_head"), self.integer("n_embd")
        inner = self.integer("n_inner") if self.data.get("n_inner") is not None else 4 * width
        sizes = self.integer("n_layer"), width, heads, heads, width // heads, inner, self.integer("vocab_size"), self.integer("n_positions")
        return Config("gpt2", *sizes, self.real("layer_norm_epsilon", 1e-5), None, tied=True)

    def _context(self) -> int:
        """Tokens that the model was made for; with a base that grows they are more than it was trained on."""
        context = self.integer("max_position_embeddings", 2048)
        said = self._turning()
        is_dynamic = isinstance(said, Mapping) and said.get("rope_type", said.get("type")) == "dynamic"
        return int(context * _Json(said, self.file).real("factor", 1.0)) if is_dynamic else context

    def _turning(self) -> Mapping[str, Any]:
        """What is said of rotation and its scaling: `rope_scaling`, or as newer files have it `rope_parameters`."""
        said = self.data.get("rope_scaling") or self.data.get("rope_parameters") or {}
        if not isinstance(said, Mapping):
            raise self.bad("rope_scaling", said, "an object")
        unknown = sorted(said.keys() - KNOWN)
        if unknown:
            raise UnsupportedError(f"{self.file}: {unknown[0]!r} of a scaled rotation is not supported, only {', '.join(sorted(KNOWN))}")
        return {name: value for name, value in said.items() if value is not None}

    def _rotation(self, head: int) -> Rotation:
        said = self._turning()
        inner = _Json(said, f"{self.file} rope_scaling")
        base = inner.real("rope_theta", self.real("rope_theta", 10_000.0))
        context = self.integer("max_position_embeddings", 2048)
        part = inner.real("partial_rotary_factor", self.real("partial_rotary_factor", 1.0))
        if not 1 <= base <= 1e12 or part > 1:
            raise self.bad("rope_theta and partial_rotary_factor", (base, part), "1 or more, and at most 1")
        kind = inner.word("rope_type", inner.word("type", "default"))
        scaling = self.scaling("none" if kind == "default" else kind)
        size = int(head * part)
        if size < 2 or size % 2:
            raise UnsupportedError(f"{self.file}: {size} numbers of a head are turned, which are no pairs")
        if scaling != "none" and (base == 1 or size < 4):
            raise UnsupportedError(f"{self.file}: a rotation of {size} numbers with base {base} cannot be scaled")
        if scaling == "none":
            return Rotation(size, base)
        # Of these two the library asks the config itself; the others are said what they were trained on.
        own = scaling in ("dynamic", "longrope")
        original = self.integer("original_max_position_embeddings", context)
        original = original if own else inner.integer("original_max_position_embeddings", original)
        stretched = scaling == "longrope" and "original_max_position_embeddings" in self.data
        factor = context / original if stretched else inner.real("factor")
        amplitude = inner.real("attention_factor") if said.get("attention_factor") is not None else None
        names = ("short_factor", "long_factor") if scaling == "longrope" else ()
        lists = [inner.divisors(name, size // 2) for name in names] or [(), ()]
        bounds = inner.real("low_freq_factor", 1.0), inner.real("high_freq_factor", 4.0)
        speeds = inner.real("beta_fast", 32.0), inner.real("beta_slow", 1.0)
        return Rotation(size, base, scaling, factor, original, *bounds, *speeds, amplitude, *lists)


def chunk_of(config: Config, length: int) -> int:
    """The tokens of a sequence that a call reads at most: frequencies that hang on how much is seen are those of a whole prompt."""
    is_whole = config.rotation is not None and config.rotation.scaling in ("dynamic", "longrope")
    return length if is_whole else min(CHUNK, length)
