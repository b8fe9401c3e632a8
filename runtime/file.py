"""The engine file: a manifest, digests of all members, atomic writing, and strict reading."""

from __future__ import annotations

import contextlib
import hashlib
import json
import mmap
import os
import re
import secrets
import stat
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..ir import dims
from ..ir.dims_text import parse_dim
from ..ir.errors import CompilerError, EngineError
from ..ir.plan import Plan, from_json, to_json
from ..ir.types import DTYPES, TensorType
from . import archive, sign
from .archive import Member, Placed
from .contents import EngineContents, Lazy, Library, Port, TargetContents
from .weights import Array, Constant, decode, encode

SCHEMA = 1
MANIFEST = "manifest.json"
MAX_MANIFEST = 64 << 20
MAX_MEMBERS = 1_000_000
_DIGEST = "sha256:"
_COMMENT = len(_DIGEST) + 64
_SIGNED_COMMENT = _COMMENT + len(" ed25519:") + 64 + 1 + 128
_NAME = re.compile(r"[A-Za-z0-9_+@~-][A-Za-z0-9_.+@~-]{0,199}(/[A-Za-z0-9_+@~-][A-Za-z0-9_.+@~-]{0,199}){0,7}")
_REBUILD = "the file was damaged, cut off or changed after it was written: build or copy it again"


@dataclass(frozen=True)
class _Record:
    """A member in the manifest; `head` is the size and the digest of the safetensors header of a weights member."""

    member: Member
    sha256: str
    head: tuple[int, str] | None = None


# --- writing ----------------------------------------------------------------------------------------------------------


def write_engine(path: str | os.PathLike[str], contents: EngineContents, *, signing_key: bytes | None = None) -> None:
    """Write an engine file, all or nothing: on any failure the old file is as it was and nothing else is left."""
    name = os.fspath(path)
    pieces = _serialise(contents, signing_key)
    directory = os.path.dirname(name) or "."
    temporary = os.path.join(directory, f".{os.path.basename(name)}.{secrets.token_hex(8)}.tmp")
    try:
        if os.path.isdir(name):
            raise IsADirectoryError(21, "Is a directory", name)
        _write_new(temporary, pieces)
        try:
            os.replace(temporary, name)
        except OSError:
            os.unlink(temporary)
            raise
        _sync_directory(directory)
    except OSError as error:
        hint = "nothing was changed; free space or choose another folder"
        raise EngineError(f"cannot write engine {name}: {error.strerror or error}", hint=hint) from error


def _write_new(path: str, pieces: Iterable[bytes | memoryview]) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0), 0o666)
    done = False
    try:
        for piece in pieces:
            view = memoryview(piece)
            while view:
                view = view[os.write(handle, view[: 1 << 30]) :]
        os.fsync(handle)
        done = True
    finally:
        # A quota or network file system may report a lost write only at close.
        try:
            os.close(handle)
        except OSError:
            done = False
            raise
        finally:
            if not done:
                os.unlink(path)


def _sync_directory(path: str) -> None:
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _serialise(contents: EngineContents, signing_key: bytes | None) -> list[bytes | memoryview]:
    """All bytes of the file, in order; weights are not copied."""
    members = list(_members(contents))
    names = [name for name, _ in members]
    for name in names:
        if not _NAME.fullmatch(name) or len(name) > 255:
            raise EngineError(f"engine member name {name!r} is not allowed, expected letters, digits and . _ - + @ ~ only")
    if len(set(names)) != len(names):
        raise EngineError("two members of the engine have the same name")
    records = [_record(name, pieces) for name, pieces in members]
    manifest = _json(_manifest(contents, records))
    digest = hashlib.sha256(manifest).hexdigest()
    comment = _DIGEST + digest
    if signing_key is not None:
        public, signature = sign.sign(digest, signing_key)
        comment += f" ed25519:{public.hex()}:{signature.hex()}"
    head = Member(MANIFEST, len(manifest), zlib.crc32(manifest))
    placed = archive.place([head, *(record.member for record in records)])
    result: list[bytes | memoryview] = [archive.local_header(placed[0]), manifest]
    for place, (_, pieces) in zip(placed[1:], members, strict=True):
        result += [archive.local_header(place), *pieces]
    return [*result, archive.directory(placed, comment.encode())]


def _members(contents: EngineContents) -> Iterator[tuple[str, list[bytes | memoryview]]]:
    yield "graph.ir", [contents.graph.encode()]
    for target in sorted(contents.targets):
        parts = contents.targets[target]
        yield f"plan/{target}.json", [_json(to_json(parts.plan))]
        for file in sorted(parts.files):
            yield f"kernels/{target}/{file}", [parts.files[file]]
    for file in sorted(contents.weights):
        header, pieces = encode(contents.weights[file])
        yield f"weights/{file}.safetensors", [header, *pieces]
    yield "ourcc.lock", [contents.lock.encode()]
    yield "report.json", [_json(contents.report)]


def _record(name: str, pieces: list[bytes | memoryview]) -> _Record:
    digest = hashlib.sha256()
    crc = size = 0
    for piece in pieces:
        digest.update(piece)
        crc = zlib.crc32(piece, crc)
        size += len(piece)
    head = (len(pieces[0]), hashlib.sha256(pieces[0]).hexdigest()) if name.startswith("weights/") else None
    return _Record(Member(name, size, crc), digest.hexdigest(), head)


def _manifest(contents: EngineContents, records: list[_Record]) -> dict[str, Any]:
    return {
        "format": "ourcc engine",
        "schema": SCHEMA,
        "inputs": [_port_to_json(port) for port in contents.inputs],
        "outputs": [_port_to_json(port) for port in contents.outputs],
        "symbols": [[name, r.low, r.high, contents.symbols.divisors.get(name, 1)] for name, r in contents.symbols.ranges.items()],
        "targets": [
            [target, [[library.file, library.machine, list(library.requires)] for library in contents.targets[target].libraries]]
            for target in contents.targets
        ],
        "provenance": dict(contents.provenance),
        "members": [[r.member.name, r.member.size, r.member.crc, r.sha256, list(r.head) if r.head else None] for r in records],
    }


def _port_to_json(port: Port) -> list[Any]:
    return [port.name, port.type.dtype.name, [size if isinstance(size, int) else str(size) for size in port.type.shape]]


def _json(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


# --- reading ----------------------------------------------------------------------------------------------------------


def read_engine(path: str | os.PathLike[str], verify: bool = False, trusted_keys: Iterable[bytes] | None = None) -> EngineContents:
    """Open an engine file; everything is checked by digest except weights, which are mapped and hashed with `verify`.

    With `trusted_keys` (raw Ed25519 public keys) only an engine signed by one of them is accepted.
    """
    name = os.fspath(path)
    with contextlib.ExitStack() as stack:
        try:
            handle = os.open(name, os.O_RDONLY | os.O_CLOEXEC | getattr(os, "O_NONBLOCK", 0))
            stack.callback(os.close, handle)
            status = os.fstat(handle)
            if not stat.S_ISREG(status.st_mode):
                raise EngineError(f"{name}: not a regular file, expected an engine")
            reader = _Reader(name, handle, status.st_size)
            manifest, signature = reader.manifest()
            if trusted_keys is not None:
                sign.check(name, reader.digest, signature, trusted_keys)
            reader.index(manifest, verify)
            stack.pop_all()
            reader.owned = True
        except OSError as error:
            raise EngineError(f"cannot read engine {name}: {error.strerror or error}") from error
    return reader.contents(manifest)


class _Reader:
    """One open engine file; it stays open as long as a member may still be read."""

    def __init__(self, path: str, handle: int, size: int) -> None:
        self.path = path
        self.handle = handle
        self.size = size
        self.digest = ""
        self.comment = b""
        self.records: dict[str, _Record] = {}
        self.placed: dict[str, Placed] = {}
        self.memory: Array = np.zeros(0, np.uint8)
        self.owned = False

    def damaged(self, what: str) -> EngineError:
        return EngineError(f"{self.path}: {what}", hint=_REBUILD)

    def read(self, first: int, count: int) -> bytes:
        """A private copy of bytes of the file."""
        parts: list[bytes] = []
        while count > 0:
            part = os.pread(self.handle, min(count, 1 << 30), first)
            if not part:
                raise self.damaged("engine ends early")
            parts.append(part)
            first += len(part)
            count -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def manifest(self) -> tuple[Mapping[str, Any], tuple[bytes, bytes] | None]:
        """The manifest, checked against the digest in the comment, and the signature."""
        if self.size < archive.PAGE + archive.END_SIZE + _COMMENT or self.read(0, 4) != archive.LOCAL_MAGIC:
            raise self.damaged(f"not an engine: got {self.size} bytes that do not start as one")
        self.comment = self._find_comment()
        self.digest = self.comment[len(_DIGEST) : _COMMENT].decode()
        start = self.read(0, archive.LOCAL_SIZE)
        size = int.from_bytes(start[18:22], "little")
        if size > min(MAX_MANIFEST, self.size - archive.PAGE):
            raise self.damaged(f"manifest of {size} bytes does not fit into {self.size} bytes")
        data = self.read(archive.PAGE, size)
        if hashlib.sha256(data).hexdigest() != self.digest:
            raise self.damaged("manifest does not match its digest")
        place = archive.place([Member(MANIFEST, size, zlib.crc32(data))])[0]
        if self.read(0, place.data) != archive.local_header(place):
            raise self.damaged(f"header of {MANIFEST} is damaged")
        self.placed[MANIFEST] = place
        try:
            manifest = json.loads(data)
            if not isinstance(manifest, dict) or manifest.get("format") != "ourcc engine" or type(manifest.get("schema")) is not int:
                raise self.damaged("not an engine: its manifest names another format")
        except (ValueError, RecursionError) as error:
            raise self.damaged(f"manifest is not valid JSON: {error}") from error
        if manifest["schema"] != SCHEMA:
            hint = "use the version of ourcc that built it, or build it again"
            raise EngineError(f"{self.path}: engine has schema {manifest['schema']}, expected {SCHEMA}", hint=hint)
        return manifest, self._signature()

    def _find_comment(self) -> bytes:
        for length in (_COMMENT, _SIGNED_COMMENT):
            first = self.size - length - archive.END_SIZE
            if first < archive.PAGE:
                continue
            end = self.read(first, archive.END_SIZE + length)
            if end[:4] == archive.END_MAGIC and int.from_bytes(end[20:22], "little") == length:
                comment = end[archive.END_SIZE :]
                if re.fullmatch(rb"sha256:[0-9a-f]{64}( ed25519:[0-9a-f]{64}:[0-9a-f]{128})?", comment):
                    return comment
        raise self.damaged("not an engine, or cut off: its end holds no digest of a manifest")

    def _signature(self) -> tuple[bytes, bytes] | None:
        if len(self.comment) == _COMMENT:
            return None
        _, public, signature = self.comment[_COMMENT:].decode().split(":")
        return bytes.fromhex(public), bytes.fromhex(signature)

    def index(self, manifest: Mapping[str, Any], verify: bool) -> None:
        """Check the whole structure of the archive against the manifest, and every member that steers or runs."""
        try:
            records = [_read_record(entry) for entry in manifest["members"]]
        except (KeyError, TypeError, ValueError) as error:
            raise self.damaged(f"list of members is damaged: {error}") from error
        names = [record.member.name for record in records]
        if len(set(names)) != len(names) or MANIFEST in names or len(names) > MAX_MEMBERS:
            raise self.damaged("list of members names one twice, or too many")
        placed = archive.place([self.placed[MANIFEST].member, *(record.member for record in records)])
        end = placed[-1].end
        tail = archive.directory(placed, self.comment)
        if end + len(tail) != self.size:
            raise self.damaged(f"engine has {self.size} bytes, expected {end + len(tail)}")
        if self.read(end, len(tail)) != tail:
            raise self.damaged("directory of the archive does not match the manifest")
        for place, record in zip(placed[1:], records, strict=True):
            if self.read(place.header, place.data - place.header) != archive.local_header(place):
                raise self.damaged(f"header of {record.member.name} is damaged")
            self.placed[record.member.name] = place
            self.records[record.member.name] = record
        self._map()
        for name, record in self.records.items():
            self._check(name, record, verify)

    def _map(self) -> None:
        self.memory = np.frombuffer(mmap.mmap(self.handle, self.size, access=mmap.ACCESS_READ), np.uint8)

    def _check(self, name: str, record: _Record, verify: bool) -> None:
        if not name.startswith("weights/"):
            self.member(name)
            return
        data = self.view(name)
        if record.head is None or record.head[0] > data.size:
            raise self.damaged(f"{name} has no digest of its header")
        if hashlib.sha256(data[: record.head[0]].data).hexdigest() != record.head[1]:
            raise self.damaged(f"header of {name} does not match its digest")
        if verify and hashlib.sha256(data.data).hexdigest() != record.sha256:
            raise self.damaged(f"{name} does not match its digest")

    def view(self, name: str) -> Array:
        """The mapped bytes of a member."""
        return self.memory[self.placed[name].data : self.placed[name].end]

    def member(self, name: str) -> bytes:
        """A private copy of a member, checked: what is used is what was hashed, whatever happens to the file."""
        if name not in self.records:
            raise self.damaged(f"engine has no member {name}")
        place = self.placed[name]
        data = self.read(place.data, place.member.size)
        if hashlib.sha256(data).hexdigest() != self.records[name].sha256 or zlib.crc32(data) != place.member.crc:
            raise self.damaged(f"{name} does not match its digest")
        return data

    def contents(self, manifest: Mapping[str, Any]) -> EngineContents:
        """The contents, plans and files read when first asked for."""
        try:
            targets = {name: tuple(_read_library(entry) for entry in libraries) for name, libraries in manifest["targets"]}
            ranges = {name: dims.Range(low, high) for name, low, high, _ in manifest["symbols"]}
            divisors = {name: divisor for name, _, _, divisor in manifest["symbols"] if divisor != 1}
            weights = tuple(name[len("weights/") : -len(".safetensors")] for name in self.records if name.startswith("weights/"))
            report = json.loads(self.member("report.json"))
            for target in targets:
                if f"plan/{target}.json" not in self.records:
                    raise self.damaged(f"engine has no plan for its target {target}")
            return EngineContents(
                tuple(_read_port(entry) for entry in manifest["inputs"]),
                tuple(_read_port(entry) for entry in manifest["outputs"]),
                Lazy(tuple(targets), lambda name: self.target(name, targets[name])),
                dims.Facts(ranges, divisors),
                self.member("graph.ir").decode(),
                Lazy(weights, self.weights),
                self.member("ourcc.lock").decode(),
                _object(report),
                _object(manifest["provenance"]),
            )
        except EngineError:
            raise
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError, CompilerError) as error:
            raise self.damaged(f"manifest is damaged: {type(error).__name__}: {error}") from error

    def weights(self, file: str) -> dict[str, Constant]:
        return decode(self.view(f"weights/{file}.safetensors"), f"{self.path}: weights/{file}.safetensors")

    def target(self, name: str, libraries: tuple[Library, ...]) -> TargetContents:
        prefix = f"kernels/{name}/"
        files = tuple(member[len(prefix) :] for member in self.records if member.startswith(prefix))
        return TargetContents(self.plan(name), Lazy(files, lambda file: self.member(prefix + file), keep=False), libraries)

    def plan(self, target: str) -> Plan:
        try:
            return from_json(json.loads(self.member(f"plan/{target}.json")))
        except EngineError:
            raise
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError, CompilerError) as error:
            raise self.damaged(f"plan/{target}.json is damaged: {type(error).__name__}: {error}") from error

    def __del__(self) -> None:
        if self.owned:
            os.close(self.handle)


def _read_record(entry: Any) -> _Record:
    name, size, crc, sha256, head = entry
    if not isinstance(name, str) or not _NAME.fullmatch(name) or len(name) > 255:
        raise ValueError(f"name {name!r} is not allowed")
    if type(size) is not int or type(crc) is not int or not 0 <= size < 2**60 or not 0 <= crc < 2**32:
        raise ValueError(f"size {size!r} or checksum {crc!r} of {name} is out of range")
    if not isinstance(sha256, str) or (head is not None and (type(head[0]) is not int or head[0] < 0 or not isinstance(head[1], str))):
        raise ValueError(f"digest of {name} is damaged")
    if name.startswith("weights/") and not name.endswith(".safetensors"):
        raise ValueError(f"weights member {name} is not a safetensors file")
    return _Record(Member(name, size, crc), sha256, None if head is None else (head[0], head[1]))


def _read_library(entry: Any) -> Library:
    file, machine, requires = entry
    return Library(str(file), str(machine), tuple(str(flag) for flag in requires))


def _read_port(entry: Any) -> Port:
    name, dtype, shape = entry
    if not isinstance(name, str) or dtype not in DTYPES:
        raise ValueError(f"port {name!r} has dtype {dtype!r}")
    return Port(name, TensorType(DTYPES[dtype], tuple(size if type(size) is int else parse_dim(size) for size in shape)))


def _object(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"got {type(value).__name__}, expected an object")
    return value
