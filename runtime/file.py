"""The engine file as it is written: its members, the manifest with their digests, the signature."""

from __future__ import annotations

import hashlib
import json
import os
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ..ir.errors import EngineError
from ..ir.plan.digest import plan_bytes
from . import archive, sign
from .archive import Member
from .contents import EngineContents, Port, Ports
from .digests import digest_parts
from .kinds import ENGINE, check_replaced
from .replace import hint_of, replace_file
from .weights import encode

SCHEMA = 11
MANIFEST = "manifest.json"
MAX_MANIFEST = 64 << 20
MAX_MEMBERS = 1_000_000
DIGEST = "sha256:"
COMMENT = len(DIGEST) + 64
SIGNED_COMMENT = COMMENT + len(" ed25519:") + 64 + 1 + 128
NAME = re.compile(r"[A-Za-z0-9_+@~-][A-Za-z0-9_.+@~-]{0,199}(/[A-Za-z0-9_+@~-][A-Za-z0-9_.+@~-]{0,199}){0,7}")


@dataclass(frozen=True)
class MemberRecord:
    """A member in the manifest; `head` is the size and the digest of the safetensors header of a weights member.

    The digest is that of the digests of the member's pieces of 4 MiB, so that threads can share the work.
    """

    member: Member
    digest: str
    head: tuple[int, str] | None = None


@dataclass(frozen=True)
class Signed:
    """What an engine file's end says: the digest of its manifest, and who signed it."""

    digest: str
    signature: sign.KeySignature

    @property
    def is_right(self) -> bool:
        """Whether that key signed this digest."""
        return sign.fits(sign.ENGINE, self.digest.encode(), self.signature)


def read_signature(path: str | os.PathLike[str]) -> Signed | None:
    """The signature at the end of a file, right or not; None for what is not signed, no engine, or not there."""
    if not os.path.isfile(path):
        return None  # A pipe would be waited for.
    try:
        with open(path, "rb") as stream:
            stream.seek(-SIGNED_COMMENT, os.SEEK_END)
            found = re.fullmatch(rb"sha256:([0-9a-f]{64}) ed25519:([0-9a-f]{64}):([0-9a-f]{128})", stream.read())
    except OSError:
        return None
    if found is None:
        return None
    digest, public, proof = (part.decode() for part in found.groups())
    return Signed(digest, sign.KeySignature(bytes.fromhex(public), bytes.fromhex(proof)))


def write_engine(path: str | os.PathLike[str], contents: EngineContents, *, signing_key: bytes | None = None) -> None:
    """Write an engine file, all or nothing: on any failure the old file is as it was and nothing else is left.

    A signed engine loses its signature to nothing unsigned: without a key it is kept where nothing that it speaks of changes,
    and anything else is refused.
    """
    check_replaced(path, ENGINE)
    pieces = _serialise(contents, signing_key, None if signing_key is not None else read_signature(path), os.fspath(path))
    try:
        replace_file(path, pieces)
    except OSError as error:
        raise EngineError(f"cannot write engine {os.fspath(path)}: {error.strerror or error}", hint=hint_of(error)) from error


def unsigned(path: str, found: Signed, hint: str) -> EngineError:
    """The refusal to put an unsigned engine in the place of a signed one."""
    return EngineError(f"engine {path!r} is signed by {found.signature.public.hex()}, and what would take its place is not", hint=hint)


def _serialise(contents: EngineContents, signing_key: bytes | None, replaced: Signed | None, path: str) -> list[bytes | memoryview]:
    """All bytes of the file, in order; weights are not copied. `replaced` is the signature in the place that it will take."""
    members = list(_members(contents))
    names = [name for name, _ in members]
    for name in names:
        if not NAME.fullmatch(name) or len(name) > 255:
            raise EngineError(f"engine member name {name!r} is not allowed, expected letters, digits and . _ - + @ ~ only")
    if len(set(names)) != len(names):
        raise EngineError("two members of the engine have the same name")
    records = [_record(name, pieces) for name, pieces in members]
    manifest = _json(_manifest(contents, records))
    digest = hashlib.sha256(manifest).hexdigest()
    comment = DIGEST + digest
    signature = None if signing_key is None else sign.sign(sign.ENGINE, digest.encode(), signing_key)
    if replaced is not None:
        if replaced.digest != digest or not replaced.is_right:
            raise unsigned(path, replaced, "give a signing_key, or another path")
        signature = replaced.signature
    if signature is not None:
        comment += f" ed25519:{signature.public.hex()}:{signature.proof.hex()}"
    head = Member(MANIFEST, len(manifest), zlib.crc32(manifest))
    placed = archive.place([head, *(record.member for record in records)])
    result: list[bytes | memoryview] = [archive.local_header(placed[0]), manifest]
    for place, (_, pieces) in zip(placed[1:], members, strict=True):
        result += [archive.local_header(place), *pieces]
    return [*result, archive.directory(placed, comment.encode())]


def _members(contents: EngineContents) -> Iterator[tuple[str, list[bytes | memoryview]]]:
    yield "graph.ir", [contents.graph.encode()]
    for name in sorted(contents.parts):
        part = contents.parts[name]
        for function, plan in part.plans.items():
            yield f"plan/{name}/{function}.json", [plan_bytes(plan)]
        for file in sorted(part.files):
            yield f"kernels/{name}/{file}", [part.files[file]]
    for file in sorted(contents.weights):
        header, pieces = encode(contents.weights[file])
        yield f"weights/{file}.safetensors", [header, *pieces]
    yield "ourcc.lock", [contents.lock.encode()]
    yield "report.json", [_json(dict(contents.report))]
    for file in sorted(contents.assets):
        yield f"assets/{file}", [contents.assets[file]]


def _record(name: str, pieces: list[bytes | memoryview]) -> MemberRecord:
    crc = 0
    for piece in pieces:
        crc = zlib.crc32(piece, crc)
    head = (len(pieces[0]), hashlib.sha256(pieces[0]).hexdigest()) if name.startswith("weights/") else None
    return MemberRecord(Member(name, sum(map(len, pieces)), crc), digest_parts(pieces), head)


def _manifest(contents: EngineContents, records: list[MemberRecord]) -> dict[str, Any]:
    return {
        "format": "ourcc engine",
        "schema": SCHEMA,
        "functions": [_function_to_json(name, ports) for name, ports in contents.functions.items()],
        "bodies": [name for name in contents.best.plans if name not in contents.functions],
        "symbols": [[name, r.low, r.high, contents.symbols.divisors.get(name, 1)] for name, r in contents.symbols.ranges.items()],
        "parts": [[name, part.family, part.machine, list(part.requires)] for name, part in contents.parts.items()],
        "provenance": dict(contents.provenance),
        "members": [[r.member.name, r.member.size, r.member.crc, r.digest, list(r.head) if r.head else None] for r in records],
    }


def _function_to_json(name: str, ports: Ports) -> list[Any]:
    return [name, [_port_to_json(port) for port in ports.inputs], [_port_to_json(port) for port in ports.outputs], list(ports.states)]


def _port_to_json(port: Port) -> list[Any]:
    return [port.name, port.type.dtype.name, [size if isinstance(size, int) else str(size) for size in port.type.shape]]


def _json(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()
