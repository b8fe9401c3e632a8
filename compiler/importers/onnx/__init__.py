"""The ONNX importer: a model file to a graph module."""

from .model import import_onnx, input_shapes

__all__ = ["import_onnx", "input_shapes"]
