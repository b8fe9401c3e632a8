"""Models that ONNX Runtime's transformer optimizer writes, and that its sessions save, compute what ONNX Runtime computes."""

from __future__ import annotations

import math
import warnings
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from generator import Case
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import QuantFormat
from onnxruntime.transformers import optimizer
from quantizing import I8, U8, Setting, disagreement, quantized, quiet_log, theirs, wrong_engines
from torch import nn
from transformers import BertConfig, BertModel

from ourcc.compiler.importers.onnx import import_onnx

WORDS, LENGTH, WIDTH, HEADS, LAYERS = 60, 32, 32, 4, 2
SIZES = ((2, 6), (1, 1), (3, 9))
N = helper.make_node


# --- GPT-2, as it was written when the optimizer learned to read it -------------------------------------------------------


class Linear(nn.Module):
    """GPT-2's linear layer, whose weight is [in, out]."""

    def __init__(self, width, out):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(width, out) * 0.2), nn.Parameter(torch.randn(out) * 0.1)

    def forward(self, x):
        return torch.addmm(self.bias, x.view(-1, x.size(-1)), self.weight).view(*x.size()[:-1], self.bias.numel())


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.before, self.between = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = Linear(WIDTH, 3 * WIDTH), Linear(WIDTH, WIDTH)
        self.up, self.down = Linear(WIDTH, 4 * WIDTH), Linear(4 * WIDTH, WIDTH)
        self.register_buffer("kept", torch.tril(torch.ones(LENGTH, LENGTH, dtype=torch.bool)).view(1, 1, LENGTH, LENGTH))
        self.register_buffer("masked", torch.tensor(-1e4))

    def forward(self, x):
        q, k, v = (part.view(*part.size()[:-1], HEADS, WIDTH // HEADS) for part in self.qkv(self.before(x)).split(WIDTH, dim=2))
        q, k, v = q.permute(0, 2, 1, 3), k.permute(0, 2, 3, 1), v.permute(0, 2, 1, 3)
        scores = torch.matmul(q, k) / math.sqrt(WIDTH // HEADS)
        rows, columns = scores.size(-2), scores.size(-1)
        scores = torch.where(self.kept[:, :, columns - rows : columns, :columns], scores, self.masked)
        mixed = torch.matmul(scores.softmax(-1), v).permute(0, 2, 1, 3).contiguous()
        x = x + self.out(mixed.view(*mixed.size()[:-2], mixed.size(-2) * mixed.size(-1)))
        h = self.up(self.between(x))
        return x + self.down(0.5 * h * (1 + torch.tanh(math.sqrt(2 / math.pi) * (h + 0.044715 * torch.pow(h, 3)))))


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.layers, self.norm = nn.ModuleList(Layer() for _ in range(LAYERS)), nn.LayerNorm(WIDTH)

    def forward(self, ids):
        x = self.words(ids) + self.places(torch.arange(ids.size(1)).unsqueeze(0))
        for layer in self.layers:
            x = layer(x)
        return self.norm(x)


class Encoder(nn.Module):
    """BERT of transformers."""

    def __init__(self):
        super().__init__()
        sizes = {"vocab_size": WORDS, "hidden_size": WIDTH, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS}
        config = BertConfig(**sizes, intermediate_size=48, max_position_embeddings=LENGTH, attn_implementation="eager")
        self.model = BertModel(config)

    def forward(self, ids, mask, types):
        return self.model(input_ids=ids, attention_mask=mask, token_type_ids=types).last_hidden_state


def optimized(kind, build, names, folder):
    """The exported model, as the optimizer writes it."""
    torch.manual_seed(0)
    source, target = Path(folder, "model.onnx"), Path(folder, "optimized.onnx")
    example = tuple(torch.ones(2, 6, dtype=torch.int64) for _ in names)
    axes = {name: {0: "B", 1: "S"} for name in (*names, "y")}
    with warnings.catch_warnings(), quiet_log(), torch.no_grad():
        # The exporter that writes what the optimizer reads says that it is the old one, and which numbers it takes as they are.
        warnings.simplefilter("ignore")
        torch.onnx.export(
            build().eval(), example, source, input_names=names, output_names=["y"], dynamic_axes=axes, dynamo=False, opset_version=12
        )
        optimizer.optimize_model(str(source), model_type=kind, num_heads=HEADS, hidden_size=WIDTH, opt_level=0).save_model_to_file(
            str(target)
        )
    return onnx.load(target)


MODELS = {
    "bert": (Encoder, ["ids", "mask", "types"], {"Attention", "EmbedLayerNormalization", "SkipLayerNormalization", "BiasGelu"}),
    "gpt2": (Decoder, ["ids"], {"Attention", "EmbedLayerNormalization", "SkipLayerNormalization", "FastGelu"}),
}


@pytest.mark.parametrize("kind", MODELS)
def test_what_the_transformer_optimizer_writes(kind, tmp_path):
    build, names, ops = MODELS[kind]
    model = optimized(kind, build, names, tmp_path)
    written = {node.op_type for node in model.graph.node if node.domain == "com.microsoft"}
    assert written == ops
    module, rng, feeds = import_onnx(model), np.random.default_rng(0), []
    for batch, length in SIZES:
        kept = np.arange(length) < rng.integers(1, length + 1, (batch, 1))
        feed = {"ids": rng.integers(0, WORDS, (batch, length)), "mask": kept.astype(np.int64), "types": rng.integers(0, 2, (batch, length))}
        feeds.append({name: feed[name] for name in names})
    wrong = [why for feed in feeds if (why := disagreement(module, feed, theirs(model, feed)))]
    assert not wrong, wrong
    case = Case(module, tuple(tuple(feed[value.name] for value in module.main.inputs) for feed in feeds[:2]))
    assert not wrong_engines([case], [kind])


# --- models that a session saves --------------------------------------------------------------------------------------


def floats(*shape):
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32) * 0.5


def mixed():
    nodes = [
        N("Conv", ["x", "w", "b"], ["c"], pads=[1, 1, 1, 1]),
        N("LeakyRelu", ["c"], ["r"], alpha=0.2),
        N("MaxPool", ["r"], ["m"], kernel_shape=[2, 2], strides=[2, 2]),
        N("Conv", ["m", "w2"], ["c2"]),
        N("Relu", ["c2"], ["r2"]),
        N("Flatten", ["r2"], ["f"]),
        N("Gemm", ["f", "v", "vb"], ["g"], transB=1),
        N("Tanh", ["g"], ["t"]),
        N("Transpose", ["t"], ["tt"], perm=[1, 0]),
        N("MatMul", ["t", "tt"], ["p"]),
        N("Mul", ["p", "half"], ["h"]),
        N("Sigmoid", ["h"], ["s"]),
        N("Mul", ["s", "h"], ["y"]),
    ]
    constants = {
        "w": floats(4, 3, 3, 3),
        "b": floats(4),
        "w2": floats(6, 4, 3, 3),
        "v": floats(5, 24),
        "vb": floats(5),
        "half": np.float32(0.5),
    }
    infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in (("x", ["B", 3, 8, 8]), ("y", ["B", "B"]))]
    initializers = [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()]
    graph = helper.make_graph(nodes, "g", infos[:1], infos[1:], initializers)
    return onnx.shape_inference.infer_shapes(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8))


def saved(model, level, folder):
    """The model as a session of this level of optimization writes it."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level, options.log_severity_level = level, 4
    options.optimized_model_filepath = str(Path(folder, "saved.onnx"))
    onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return onnx.load(options.optimized_model_filepath)


EXTENDED, ALL = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED, onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
SAVED = {
    "floats": (None, EXTENDED, {"FusedConv", "FusedGemm", "FusedMatMul", "QuickGelu"}),
    "codes": (Setting(QuantFormat.QDQ, U8, I8), ALL, {"QLinearConv", "NhwcMaxPool", "QGemm"}),
}


@pytest.mark.parametrize("name", SAVED)
def test_what_a_session_saves(name, tmp_path):
    setting, level, ops = SAVED[name]
    feeds = [{"x": np.random.default_rng(batch).standard_normal((batch, 3, 8, 8)).astype(np.float32)} for batch in (3, 1)]
    plain = mixed()
    model = saved(plain if setting is None else quantized(plain, setting, feeds), level, tmp_path)
    assert ops <= {node.op_type for node in model.graph.node if node.domain == "com.microsoft"}
    module = import_onnx(model)
    wrong = [why for feed in feeds if (why := disagreement(module, feed, theirs(model, feed)))]
    assert not wrong, wrong
