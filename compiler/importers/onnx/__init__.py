"""The ONNX importer: a model file to a graph module."""

from .load import external_files, open_model
from .model import import_onnx, input_shapes

__all__ = ["external_files", "import_onnx", "input_shapes", "open_model"]
