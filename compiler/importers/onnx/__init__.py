"""The ONNX importer: a model file to a graph module."""

from ....ir.extras import need

# Every road to onnx comes through here, so that one that is missing or broken is said.
need("onnx", "ONNX models")

from .load import external_files  # noqa: E402
from .model import import_onnx, input_shapes  # noqa: E402

__all__ = ["external_files", "import_onnx", "input_shapes"]
