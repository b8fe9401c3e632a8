"""The files and models that one model becomes for `make bench-cpu`: in floats, and quantized by the peers' own tools.

All are made of the same weights and of the same drawn inputs. `coded`: ONNX Runtime's static quantizer, QDQ, unsigned activations,
int8 weights with a scale for each channel. `dynamic`: its dynamic one, products only. `blocks`: its `MatMulNBits`, int4 in groups of 32.
`nncf_int8` and `nncf_int4` are OpenVINO's models by NNCF.
"""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import zoo

CALIBRATION = 4
"""Drawn inputs that quantizers see, none of which is measured."""
GROUP = 32


class Files:
    """Each file is made when it is first asked for; whatever the tool that makes it raises, goes on."""

    def __init__(self, model: Any, name: str, size: tuple[int, int], folder: Path) -> None:
        self.model = model
        self._size = size
        self._folder = folder
        self._name = name

    def _path(self, kind: str) -> Path:
        return self._folder / f"{self._name}.{kind}.onnx"

    def _drawn(self) -> Iterator[dict[str, np.ndarray[Any, Any]]]:
        for seed in range(1, CALIBRATION + 1):
            yield dict(zip(self.model.names, (x.numpy() for x in self.model.draw(*self._size, seed)), strict=True))

    @functools.cached_property
    def floats(self) -> Path:
        """The model as it is exported, its sizes as symbols."""
        return zoo.write_onnx(self.model, self._path("float"))

    @functools.cached_property
    def _prepared(self) -> Path:
        """What ONNX Runtime's quantizers want: shapes inferred, constants folded."""
        from onnxruntime.quantization.shape_inference import quant_pre_process

        with _quiet():
            quant_pre_process(str(self.floats), str(self._path("prepared")), skip_symbolic_shape=True)
        return self._path("prepared")

    @functools.cached_property
    def coded(self) -> Path:
        from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

        class Drawn(CalibrationDataReader):  # type: ignore[misc]
            def __init__(self, rows: Iterator[dict[str, np.ndarray[Any, Any]]]) -> None:
                self.rows = rows

            def get_next(self) -> dict[str, np.ndarray[Any, Any]] | None:
                return next(self.rows, None)

        kinds = {"activation_type": QuantType.QUInt8, "weight_type": QuantType.QInt8}
        reader = Drawn(self._drawn())
        with _quiet():
            quantize_static(str(self._prepared), str(self._path("coded")), reader, quant_format=QuantFormat.QDQ, per_channel=True, **kinds)
        return self._path("coded")

    @functools.cached_property
    def _products(self) -> Path:
        """The prepared file with every Gemm as MatMul and Add, which is what quantizers of weights look for."""
        import onnx
        from onnxruntime.quantization.onnx_model import ONNXModel

        read = ONNXModel(onnx.load(str(self._prepared)))
        read.replace_gemm_with_matmul()
        read.model.graph.ClearField("value_info")  # it tells the shapes of weights that were turned since
        onnx.save(read.model, str(self._path("products")))
        return self._path("products")

    @functools.cached_property
    def dynamic(self) -> Path:
        from onnxruntime.quantization import QuantType, quantize_dynamic

        options = {"op_types_to_quantize": ["MatMul"], "per_channel": True, "weight_type": QuantType.QInt8}
        with _quiet():
            quantize_dynamic(str(self._products), str(self._path("dynamic")), **options)
        _need(self._path("dynamic"), "MatMulInteger")
        return self._path("dynamic")

    @functools.cached_property
    def blocks(self) -> Path:
        """Products in f32."""
        return self._blocks(1)

    @functools.cached_property
    def blocks_int8(self) -> Path:
        """Activations are rounded to int8 while it runs."""
        return self._blocks(4)

    def _blocks(self, accuracy: int) -> Path:
        """`accuracy` is ONNX Runtime's accuracy_level."""
        import onnx
        from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

        made = MatMulNBitsQuantizer(onnx.load(str(self._products)), block_size=GROUP, is_symmetric=True, accuracy_level=accuracy)
        with _quiet():
            made.process()
        path = self._path(f"blocks{accuracy}")
        onnx.save(made.model.model, str(path))
        _need(path, "MatMulNBits")
        return path

    @functools.cached_property
    def nncf_int8(self) -> Any:
        import nncf

        nncf.set_log_level(logging.ERROR)
        kind = nncf.ModelType.TRANSFORMER if zoo.attends(self.model) else None
        return nncf.quantize(self._openvino(), nncf.Dataset(list(self._drawn())), model_type=kind, subset_size=CALIBRATION)

    @functools.cached_property
    def nncf_int4(self) -> Any:
        """Products in groups of 32 without a zero point; embeddings and the last layer in int8, as NNCF does by itself."""
        import nncf

        nncf.set_log_level(logging.ERROR)
        return nncf.compress_weights(self._openvino(), mode=nncf.CompressWeightsMode.INT4_SYM, group_size=GROUP, ratio=1.0)

    def _openvino(self) -> Any:
        import openvino

        return openvino.Core().read_model(str(self.floats))


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Each layer would say that it is quantized."""
    logger = logging.getLogger()
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def _need(path: Path, op: str) -> None:
    """ValueError where a quantizer left everything as it was."""
    import onnx

    if not any(node.op_type == op for node in onnx.load(str(path), load_external_data=False).graph.node):
        raise ValueError(f"ONNX Runtime's quantizer makes no {op} of this model")
