"""What a language model is made of: sizes, rotation of positions, constants; read from GGUF metadata or a config.json."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...ir.errors import ModelError, UnsupportedError
from ...runtime.language.facts import CHUNK
from .said import LARGEST, Said

SCALINGS = ("none", "linear", "dynamic", "yarn", "llama3", "longrope")
KNOWN = frozenset(
    "rope_type type rope_theta partial_rotary_factor factor original_max_position_embeddings low_freq_factor high_freq_factor "
    "beta_fast beta_slow attention_factor short_factor long_factor".split()
)
"""What a scaling may say of itself: anything else would change it silently."""
GGUF_SCALINGS = ("none", "linear", "yarn")
"""What a GGUF file says all of: the lists of others it keeps as tensors."""


def yarn_amplitude(factor: float) -> float:
    """What cosine and sine are multiplied by where YaRN stretches a context by a factor (arXiv:2309.00071, section 3.4)."""
    return 1.0 if factor <= 1 else 0.1 * math.log(factor) + 1.0


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


def config_of(kind: str, metadata: Mapping[str, Any], name: str, known: Collection[str]) -> Config:
    """The config of a checkpoint of this kind: `gguf`, or `folder` with a config.json; of one of the known architectures."""
    read = _Gguf(metadata, name) if kind == "gguf" else _Json(metadata, f"{name}/config.json")
    architecture = read.architecture()
    if architecture not in known:
        raise UnsupportedError(f"{name}: architecture {architecture!r:.80} is not supported, only {', '.join(known)}")
    return read.checked(read.config())


class _Read(Said):
    """Fields that make a config."""

    def scaling(self, name: str, known: Sequence[str] = SCALINGS) -> str:
        if name not in known:
            raise UnsupportedError(f"{self.file}: rotation is scaled by {name!r}, which is not supported, only {', '.join(known)}")
        return name

    def checked(self, config: Config) -> Config:
        """The config, whose sizes fit to each other and whose rotation can be computed."""
        rotation = config.rotation
        if config.heads % config.groups:
            raise ModelError(f"{self.file}: {config.heads} heads of queries and {config.groups} of keys, expected a multiple")
        if not 2 <= config.context <= LARGEST:
            raise ModelError(f"{self.file}: the context has {config.context} tokens, expected 2 to {LARGEST}")
        if rotation is None:
            return config
        if rotation.size < 2 or rotation.size % 2 or rotation.size > config.head:
            raise UnsupportedError(
                f"{self.file}: {rotation.size} of {config.head} numbers of a head are turned, which are no pairs of them"
            )
        if not 1 <= rotation.base <= 1e12:
            raise ModelError(f"{self.file}: positions are turned by powers of {rotation.base}, expected 1 or more, up to 1e12")
        if rotation.scaling != "none" and (rotation.base == 1 or rotation.size < 4):
            raise UnsupportedError(f"{self.file}: a rotation of {rotation.size} numbers with base {rotation.base} cannot be scaled")
        bounds = (
            ("llama3", "low_freq_factor", rotation.low, "high_freq_factor", rotation.high),
            ("yarn", "beta_slow", rotation.slow, "beta_fast", rotation.fast),
        )
        for kind, less, low, more, high in bounds:
            if rotation.scaling == kind and not low < high:
                raise ModelError(f"{self.file}: {less} is {low} and {more} is {high}, expected the second to be greater")
        if rotation.scaling == "longrope" and rotation.original < 2:
            raise ModelError(f"{self.file}: original_max_position_embeddings is {rotation.original}, expected at least 2")
        return config


class _Gguf(_Read):
    def architecture(self) -> str:
        return self.word("general.architecture", "")

    def config(self) -> Config:
        architecture = self.architecture()

        def of(name: str) -> str:
            return f"{architecture}.{name}"

        heads, width = self.integer(of("attention.head_count")), self.integer(of("embedding_length"))
        if width % heads and of("attention.key_length") not in self.data:
            raise ModelError(
                f"{self.file}: {of('embedding_length')} is {width}, expected a multiple of the {heads} heads, or their key_length"
            )
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
        # As llama.cpp reads it: a factor, also by its older name, is of a linear scaling where no type is said.
        stretch = next((of(name) for name in ("rope.scaling.factor", "rope.scale_linear") if self.data.get(of(name), 0) != 0), None)
        factor = 1.0 if stretch is None else self.real(stretch)
        scaling = self.scaling(self.word(of("rope.scaling.type"), "none" if stretch is None else "linear"), GGUF_SCALINGS)
        amplitude = self.real(of("rope.scaling.attn_factor")) if of("rope.scaling.attn_factor") in self.data else None
        if amplitude is not None and scaling == "yarn":
            amplitude *= yarn_amplitude(factor)  # there it comes besides, in folders in its place
        return Rotation(
            self.integer(of("rope.dimension_count"), head),
            self.real(of("rope.freq_base"), 10_000.0),
            scaling,
            factor,
            self.integer(of("rope.scaling.original_context_length"), self.integer(of("context_length"))),
            amplitude=amplitude,
        )


class _Json(_Read):
    def architecture(self) -> str:
        if "model_type" not in self.data:
            raise ModelError(f"{self.file}: model_type is missing", hint="it says what the model is, like llama")
        return self.word("model_type", "")

    def config(self) -> Config:
        architecture = self.architecture()
        self._check_coding()
        for name in ("attention_bias", "mlp_bias"):
            self.flag(name)
        for name in ("bos_token_id", "eos_token_id"):
            self.tokens(name)
        if architecture == "gpt2":
            return self._gpt2()
        heads, width = self.integer("num_attention_heads"), self.integer("hidden_size")
        if self.data.get("head_dim") is None and width % heads:
            raise ModelError(f"{self.file}: hidden_size is {width}, expected a multiple of the {heads} heads, or head_dim")
        head = self.integer("head_dim") if self.data.get("head_dim") is not None else width // heads
        if self.word("hidden_act", "silu") != "silu":
            raise UnsupportedError(f"{self.file}: hidden_act {self.data['hidden_act']!r} is not supported, only silu")
        if architecture.startswith("qwen") and self.flag("use_sliding_window"):
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
            self.flag("tie_word_embeddings"),
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
        self.flag("tie_word_embeddings", True)
        if not self.flag("scale_attn_weights", True) or self.flag("scale_attn_by_inverse_layer_idx"):
            raise UnsupportedError(f"{self.file}: scores of attention that are scaled otherwise are not supported")
        heads, width = self.integer("n_head"), self.integer("n_embd")
        if width % heads:
            raise ModelError(f"{self.file}: n_embd is {width}, expected a multiple of the {heads} heads")
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
        said = self.inner("rope_scaling") or self.inner("rope_parameters")
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
        if part > 1:
            raise self.bad("partial_rotary_factor", part, "at most 1")
        kind = inner.word("rope_type", inner.word("type", "default"))
        scaling = self.scaling("none" if kind == "default" else kind)
        size = int(head * part)
        if scaling == "none":
            return Rotation(size, base)
        # Of these two the library asks the config itself; the others are said what they were trained on.
        own = scaling in ("dynamic", "longrope")
        original = self.integer("original_max_position_embeddings", context)
        inside = inner.integer("original_max_position_embeddings", original)
        original = original if own else inside
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
