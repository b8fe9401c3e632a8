"""Folders as Hugging Face keeps models: config.json, safetensors files, a tokenizer; tensors are mapped, nothing is unpickled.

Source of the tensor format: safetensors' README (a length, a JSON header, bytes). Tensors fill all bytes behind the header, one after the
other, none shares a byte with another, and `__metadata__` maps texts to texts.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from ....ir.errors import ModelError, UnsupportedError
from ....ir.types import DTYPES
from ....runtime.weights import MAX_HEADER, SAFETENSORS
from .stored import Checkpoint, Stored, mapped, part

MOST_TEXT = 1 << 28
TEXTS = ("tokenizer.json", "tokenizer_config.json", "generation_config.json", "chat_template.jinja")


def read_folder(folder: Path) -> Checkpoint:
    """A model's config, tensors and texts; ModelError for what is missing or damaged, UnsupportedError for pickled weights."""
    config = read_config(folder).metadata
    files = _files(folder)
    if not files:
        pickled = sorted(each.name for pattern in ("*.bin", "*.pt", "*.pth") for each in folder.glob(pattern))
        if pickled:
            hint = "save it again: model.save_pretrained(folder, safe_serialization=True)"
            raise UnsupportedError(f"{folder.name}: {pickled[0]} is pickled, and reading a pickle runs code from it", hint=hint)
        raise ModelError(f"{folder.name}: there is no .safetensors file")
    tensors: dict[str, Stored] = {}
    for file in files:
        for name, stored in read_safetensors(file).items():
            if name in tensors:
                raise ModelError(f"{folder.name}: two files hold a tensor {name!r}")
            tensors[name] = stored
    texts = {name: _text(folder / name) for name in TEXTS if (folder / name).is_file()}
    return Checkpoint(folder.name, "folder", config, tensors, texts)


def _files(folder: Path) -> list[Path]:
    """The files that hold a model: one, those that an index names, or else all; beside these others may hold it in another form."""
    whole, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
    if whole.is_file():
        return [whole]
    if not index.is_file():
        return sorted(folder.glob("*.safetensors"))
    places = _json(index).get("weight_map")
    names = sorted({name for name in places.values() if isinstance(name, str)}) if isinstance(places, dict) else []
    if not names or any(Path(name).name != name or not name.endswith(".safetensors") for name in names):
        raise ModelError(f"{index.name}: weight_map is {places!s:.80}, expected files of this folder by the tensors that they hold")
    for name in names:
        if not (folder / name).is_file():
            raise ModelError(f"{folder.name}: there is no {name}, which {index.name} names", hint="download the model again, whole")
    return [folder / name for name in names]


def read_config(folder: Path) -> Checkpoint:
    """What a folder's config.json says, and nothing of its tensors, which need not be there; ModelError where there is none."""
    if not (folder / "config.json").is_file():
        hint = "a language model is a folder as model.save_pretrained writes it, or a .gguf file"
        raise ModelError(f"{str(folder)!r} holds no config.json", hint=hint)
    return Checkpoint(folder.name, "folder", _json(folder / "config.json"), {})


def read_safetensors(file: Path) -> dict[str, Stored]:
    """The tensors of a file by name."""

    def damaged(what: str) -> ModelError:
        return ModelError(f"{file.name}: {what}", hint="the file is damaged: download or save it again")

    data = mapped(file)
    size = int.from_bytes(data[:8].tobytes(), "little") if len(data) >= 8 else MAX_HEADER + 1
    if size > min(MAX_HEADER, len(data) - 8):
        raise damaged(f"its header of {size} bytes does not fit into {len(data)} bytes")
    try:
        header = json.loads(data[8 : 8 + size].tobytes(), object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        raise damaged(f"its header is no JSON: {error}") from error
    if not isinstance(header, dict):
        raise damaged("its header is no object")
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(each, str) for each in metadata.values()):
        raise damaged(f"__metadata__ is {metadata!r:.80}, expected texts by name")
    found, taken = {}, []
    for name, said in header.items():
        try:
            dtype, shape, (first, last) = DTYPES[SAFETENSORS[said["dtype"]]], tuple(said["shape"]), said["data_offsets"]
            if not all(type(each) is int and each >= 0 for each in (*shape, first, last)):
                raise ValueError("a negative size")
        except (KeyError, TypeError, ValueError) as error:
            raise damaged(f"tensor {name!r} is said to be {said!r:.200}") from error
        if last - first != math.prod(shape) * dtype.itemsize or 8 + size + last > len(data):
            raise damaged(f"tensor {name!r} of {list(shape)} does not lie at bytes {first} to {last}")
        taken.append((first, last, name))
        found[name] = Stored(name, shape, dtype, partial(part, data, 8 + size + first, last - first, dtype.numpy, shape))
    fault = _unfilled(sorted(taken), len(data) - 8 - size)
    if fault:
        raise damaged(fault)
    return found


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of a header whose names are said once."""
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{next(name for name in names if names.count(name) > 1)!r} is said twice")
    return found


def _unfilled(taken: list[tuple[int, int, str]], size: int) -> str:
    """What is wrong where tensors, by first and last byte, do not fill so many bytes one after the other; nothing where they do."""
    end, before = 0, ""
    for first, last, name in taken:
        if first < end:
            return f"tensors {before!r} and {name!r} overlap: the first ends at byte {end}, the second begins at {first}"
        if first > end:
            return f"bytes {end} to {first} belong to no tensor"
        end, before = last, name
    return f"bytes {end} to {size} belong to no tensor" if end < size else ""


def _text(file: Path) -> str:
    try:
        if file.stat().st_size > MOST_TEXT:
            raise ModelError(f"{file.name} has {file.stat().st_size} bytes, at most {MOST_TEXT} are read")
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ModelError(f"cannot read {file.name}: {error}") from error


def _json(file: Path) -> Mapping[str, Any]:
    try:
        found = json.loads(_text(file))
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{file.name} is no JSON: {error}") from error
    if not isinstance(found, dict):
        raise ModelError(f"{file.name} is no object")
    return found
