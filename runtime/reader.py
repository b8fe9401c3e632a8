"""The engine file as it is read: strictly, everything checked before it is used; what is small is copied, weights are mapped."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import re
import stat
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from ..ir import dims
from ..ir.dims_text import parse_dim
from ..ir.errors import CompilerError, EngineError
from ..ir.plan import Plan, from_json
from ..ir.types import DTYPES, TensorType
from . import archive, sign
from .archive import Member, Placed
from .checked import Checked, same_file
from .contents import EngineContents, Lazy, LazyObject, PartContents, Port, Ports, WrittenPlans
from .digests import Heard, Watch, digest_file, digest_parts, read_into
from .file import COMMENT, DIGEST, MANIFEST, MAX_MANIFEST, MAX_MEMBERS, NAME, SCHEMA, SIGNED_COMMENT, MemberRecord
from .mapping import bring, map_file
from .replace import path_text
from .sign import KeySignature
from .weights import Array, Constant, aligned_bytes, decode

SMALL = 1 << 20
"""Bytes: weights no larger are copied, so that nothing that happens to the file can reach them."""

_REBUILD = "the file was damaged, cut off or changed after it was written: build or copy it again"
_NONE = "expected a file that ourcc build wrote; if this was one it was damaged or cut off: build or copy it again"


@dataclass(frozen=True)
class Reading:
    """How an engine file is read.

    With `trusted_keys` (raw Ed25519 public keys) only an engine that one of them signed is accepted; no key trusts
    nobody. Weights are hashed and plans verified unless a record in the folder `checked` says that they were before; with
    `verify` they are in any case. With `copy_weights` they are copied into memory and hashed there, else they stay mapped.
    `watch` is told how far hashing is.
    """

    verify: bool = False
    trusted_keys: Iterable[bytes] | None = None
    checked: str | None = None
    copy_weights: bool = False
    watch: Watch | None = None


def read_engine(path: str | os.PathLike[str], reading: Reading = Reading()) -> EngineContents:
    """Open an engine file; EngineError unless it is what was written, byte by byte."""
    name = path_text(path, "the engine")
    keys = None if reading.trusted_keys is None else sign.trusted(reading.trusted_keys)
    with contextlib.ExitStack() as stack:
        try:
            handle = os.open(name, os.O_RDONLY | os.O_CLOEXEC | getattr(os, "O_NONBLOCK", 0))
            stack.callback(os.close, handle)
            status = os.fstat(handle)
            if not stat.S_ISREG(status.st_mode):
                raise EngineError(f"{name}: not a regular file, expected an engine")
            reader = _Reader(name, handle, status)
            manifest, signature = reader.manifest()
            refusal = None if keys is None else sign.refusal(sign.ENGINE, reader.digest.encode(), signature, keys)
            if refusal is not None:
                raise EngineError(f"{name}: engine is {refusal}")
            reader.index(manifest)
            reader.check(reading)
            stack.pop_all()
            reader.owned = True
        except EOFError as error:
            raise reader.damaged("engine ends early") from error
        except OSError as error:
            raise EngineError(f"cannot read engine {name}: {error.strerror or error}") from error
    return reader.contents(manifest)


class _Reader:
    """One open engine file; it stays open as long as a member may still be read."""

    def __init__(self, path: str, handle: int, status: os.stat_result) -> None:
        self.path = path
        self.handle = handle
        self.status = status
        self.size = status.st_size
        self.digest = ""
        self.comment = b""
        self.records: dict[str, MemberRecord] = {}
        self.placed: dict[str, Placed] = {}
        self.heads: dict[str, bytes] = {}
        self.copies: dict[str, Array] = {}
        self.memory: Array = np.zeros(0, np.uint8)
        self.known: Checked | None = None
        self.owned = False

    def damaged(self, what: str) -> EngineError:
        return EngineError(f"{self.path}: {what}", hint=_REBUILD)

    def read(self, first: int, count: int) -> bytes:
        """A private copy of bytes of the file."""
        if first + count > self.size:
            raise EOFError
        data = bytearray(count)
        read_into(self.handle, first, memoryview(data))
        return bytes(data)

    def manifest(self) -> tuple[Mapping[str, Any], KeySignature | None]:
        """The manifest, checked against the digest in the comment, and the signature."""
        if self.size < archive.PAGE + archive.END_SIZE + COMMENT or self.read(0, 4) != archive.LOCAL_MAGIC:
            raise EngineError(f"{self.path}: not an engine: got {self.size} bytes that do not start as one", hint=_NONE)
        self.comment = self._find_comment()
        self.digest = self.comment[len(DIGEST) : COMMENT].decode()
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
        for length in (COMMENT, SIGNED_COMMENT):
            first = self.size - length - archive.END_SIZE
            if first < archive.PAGE:
                continue
            end = self.read(first, archive.END_SIZE + length)
            if end[:4] == archive.END_MAGIC and int.from_bytes(end[20:22], "little") == length:
                comment = end[archive.END_SIZE :]
                if re.fullmatch(rb"sha256:[0-9a-f]{64}( ed25519:[0-9a-f]{64}:[0-9a-f]{128})?", comment):
                    return comment
        raise self.damaged("not an engine, or cut off: its end holds no digest of a manifest")

    def _signature(self) -> KeySignature | None:
        if len(self.comment) == COMMENT:
            return None
        _, public, signature = self.comment[COMMENT:].decode().split(":")
        return KeySignature(bytes.fromhex(public), bytes.fromhex(signature))

    def index(self, manifest: Mapping[str, Any]) -> None:
        """Check the whole structure of the archive against the manifest."""
        try:
            records = [_read_record(entry) for entry in _list(manifest["members"])]
        except (LookupError, TypeError, ValueError) as error:
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

    def check(self, reading: Reading) -> None:
        """Check every member by its digest, or take a record's word for weights that are mapped."""
        checked = None if reading.checked is None else Checked(reading.checked)
        self.known = None if reading.verify else checked
        large = []
        for name, record in self.records.items():
            if not name.startswith("weights/"):
                self.member(name)
                continue
            self._check_head(name, record)
            if record.member.size <= SMALL:
                self._copy(name, record)
            else:
                large.append(name)
        if not large:
            return
        heard = _progress(sum(self.records[name].member.size for name in large), reading.watch)
        if reading.copy_weights:
            for name in large:
                self._copy(name, self.records[name], heard)
            return
        memory = map_file(self.handle, self.size)
        if reading.verify or checked is None or not checked.holds(self.status, self.digest):
            for name in large:
                self._hash(name, heard, ahead=functools.partial(bring, memory))
            if checked is not None and same_file(self.status, os.fstat(self.handle)):
                checked.add(self.status, self.digest)
        self.memory = np.frombuffer(memory, np.uint8)

    def _check_head(self, name: str, record: MemberRecord) -> None:
        if record.head is None or not 8 <= record.head[0] <= record.member.size:
            raise self.damaged(f"{name} has no digest of its header")
        self.heads[name] = self.read(self.placed[name].data, record.head[0])
        if hashlib.sha256(self.heads[name]).hexdigest() != record.head[1]:
            raise self.damaged(f"header of {name} does not match its digest")

    def _copy(self, name: str, record: MemberRecord, heard: Heard = None) -> None:
        memory = aligned_bytes(record.member.size)
        self._hash(name, heard, memory.data)
        memory.flags.writeable = False
        self.copies[name] = memory

    def _hash(self, name: str, heard: Heard, into: memoryview | None = None, ahead: Callable[[int, int], None] | None = None) -> None:
        record = self.records[name]
        if digest_file(self.handle, self.placed[name].data, record.member.size, into, heard, ahead) != record.digest:
            raise self.damaged(f"{name} does not match its digest")

    def view(self, name: str) -> Array:
        """The bytes of a weights member, copied or mapped."""
        copy = self.copies.get(name)
        return copy if copy is not None else self.memory[self.placed[name].data : self.placed[name].end]

    def member(self, name: str) -> bytes:
        """A private copy of a member, checked: what is used is what was hashed, whatever happens to the file."""
        if name not in self.records:
            raise self.damaged(f"engine has no member {name}")
        place = self.placed[name]
        try:
            data = self.read(place.data, place.member.size)
        except EOFError as error:
            raise self.damaged("engine ends early") from error
        if digest_parts([data]) != self.records[name].digest or zlib.crc32(data) != place.member.crc:
            raise self.damaged(f"{name} does not match its digest")
        return data

    def contents(self, manifest: Mapping[str, Any]) -> EngineContents:
        """The contents, plans and files read when first asked for."""
        try:
            needs = dict(_read_needs(entry) for entry in _list(manifest["parts"]))
            symbols = _list(manifest["symbols"])
            ranges = {name: dims.Range(low, high) for name, low, high, _ in symbols}
            divisors = {name: divisor for name, _, _, divisor in symbols if divisor != 1}
            weights = tuple(name[len("weights/") : -len(".safetensors")] for name in self.records if name.startswith("weights/"))
            if "report.json" not in self.records:
                raise self.damaged("engine has no member report.json")
            assets = tuple(name[len("assets/") :] for name in self.records if name.startswith("assets/"))
            functions = dict(_read_function(entry) for entry in _list(manifest["functions"]))
            plans = (*functions, *(str(name) for name in _list(manifest["bodies"])))
            if not functions or len(functions) != len(manifest["functions"]):
                raise self.damaged("engine has two functions of one name" if functions else "engine has no function")
            if not needs or len(needs) != len(manifest["parts"]):
                raise self.damaged("engine has two parts of one name" if needs else "engine has no part")
            for part in needs:
                for function in plans:
                    if f"plan/{part}/{function}.json" not in self.records:
                        raise self.damaged(f"engine has no plan of its function {function} for its part {part}")
            return EngineContents(
                functions,
                Lazy(tuple(needs), lambda name: self.part(name, plans, needs[name])),
                dims.Facts(ranges, divisors),
                self.member("graph.ir").decode(),
                Lazy(weights, self.weights),
                self.member("ourcc.lock").decode(),
                LazyObject(self.report),
                _object(manifest["provenance"]),
                Lazy(assets, lambda file: self.member(f"assets/{file}")),
            )
        except EngineError:
            raise
        except (LookupError, TypeError, ValueError, AttributeError, RecursionError, CompilerError) as error:
            raise self.damaged(f"manifest is damaged: {type(error).__name__}: {error}") from error

    def weights(self, file: str) -> dict[str, Constant]:
        member = f"weights/{file}.safetensors"
        return decode(self.heads[member], self.view(member)[len(self.heads[member]) :], f"{self.path}: {member}")

    def part(self, name: str, functions: tuple[str, ...], needs: _Needs) -> PartContents:
        prefix = f"kernels/{name}/"
        files = tuple(member[len(prefix) :] for member in self.records if member.startswith(prefix))
        file = f"plan/{name}/{{}}.json".format
        plans = WrittenPlans(
            functions, lambda function: self.plan(file(function)), lambda function: self.member(file(function)), self.known
        )
        return PartContents(plans, Lazy(files, lambda file: self.member(prefix + file), keep=False), *needs)

    def report(self) -> Mapping[str, Any]:
        """The report, which only who looks into an engine reads."""
        try:
            return _object(json.loads(self.member("report.json")))
        except (TypeError, ValueError, RecursionError) as error:
            raise self.damaged(f"report.json is damaged: {error}") from error

    def plan(self, member: str) -> Plan:
        try:
            return from_json(json.loads(self.member(member)))
        except EngineError:
            raise
        except CompilerError as error:
            raise self.damaged(f"{member} is damaged: {error.message}") from error
        except (ValueError, RecursionError) as error:
            raise self.damaged(f"{member} is not valid JSON: {error}") from error

    def __del__(self) -> None:
        if self.owned:
            os.close(self.handle)


def _progress(total: int, watch: Watch | None) -> Heard:
    if watch is None:
        return None
    done = 0

    def heard(count: int) -> None:
        nonlocal done
        done = min(done + count, total)
        watch(done, total)

    return heard


def _read_record(entry: Any) -> MemberRecord:
    name, size, crc, digest, head = entry
    if not isinstance(name, str) or not NAME.fullmatch(name) or len(name) > 255:
        raise ValueError(f"name {name!r} is not allowed")
    if type(size) is not int or type(crc) is not int or not 0 <= size < 2**60 or not 0 <= crc < 2**32:
        raise ValueError(f"size {size!r} or checksum {crc!r} of {name} is out of range")
    if not isinstance(digest, str) or (head is not None and (type(head[0]) is not int or head[0] < 0 or not isinstance(head[1], str))):
        raise ValueError(f"digest of {name} is damaged")
    if name.startswith("weights/") and not name.endswith(".safetensors"):
        raise ValueError(f"weights member {name} is not a safetensors file")
    return MemberRecord(Member(name, size, crc), digest, None if head is None else (head[0], head[1]))


_Needs: TypeAlias = tuple[str, str, tuple[str, ...]]
"""What a part runs on: family, machine, CPU flags."""


def _read_needs(entry: Any) -> tuple[str, _Needs]:
    name, family, machine, requires = entry
    if not isinstance(requires, list) or not all(isinstance(text, str) for text in (name, family, machine, *requires)):
        raise ValueError(f"part {name!r} is for {family!r}, {machine!r}, {requires!r}")
    return name, (family, machine, tuple(requires))


def _read_function(entry: Any) -> tuple[str, Ports]:
    name, inputs, outputs, states = entry
    if not isinstance(name, str) or not isinstance(states, list) or not all(isinstance(state, str) for state in states):
        raise ValueError(f"function {name!r} has the states {states!r}")
    return name, Ports(tuple(map(_read_port, inputs)), tuple(map(_read_port, outputs)), tuple(states))


def _read_port(entry: Any) -> Port:
    name, dtype, shape = entry
    if not isinstance(name, str) or dtype not in DTYPES:
        raise ValueError(f"port {name!r} has dtype {dtype!r}")
    return Port(name, TensorType(DTYPES[dtype], tuple(size if type(size) is int else parse_dim(size) for size in shape)))


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError(f"got {type(value).__name__}, expected a list")
    return value


def _object(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"got {type(value).__name__}, expected an object")
    return value
