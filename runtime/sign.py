"""Ed25519: keys from files, signatures of engines and of tuning records, and why one is not believed."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ..ir.errors import ToolchainError, UsageError

ENGINE, RECORD = b"ourcc engine v1:", b"ourcc record v1:"
"""What is signed begins with its kind: a signature of one says nothing of the other."""

_HEX = re.compile(rb"\s*([0-9a-fA-F]{64})\s*")
_FORMS = "32 raw bytes, 64 hex digits, or PEM as openssl genpkey -algorithm ed25519 writes it"


@dataclass(frozen=True)
class KeySignature:
    """A public key and what it signed with, raw."""

    public: bytes
    proof: bytes


def sign(kind: bytes, message: bytes, private_key: bytes) -> KeySignature:
    """The signature of a message; the private key is 32 raw bytes."""
    private = _ed25519().Ed25519PrivateKey
    if len(private_key) != 32:
        raise UsageError(f"signing key has {len(private_key)} bytes, expected 32")
    key = private.from_private_bytes(private_key)
    return KeySignature(key.public_key().public_bytes_raw(), key.sign(kind + message))


def trusted(keys: Iterable[bytes]) -> frozenset[bytes]:
    """Trusted public keys, checked; none at all trusts nobody."""
    if isinstance(keys, bytes | str):
        raise UsageError("got one value for the trusted keys, expected a list of keys of 32 bytes")
    found = set()
    for key in keys:
        if not isinstance(key, bytes):
            hint = "a key is the bytes of its file: pathlib.Path(FILE).read_bytes()"
            raise UsageError(f"got a trusted key of {type(key).__name__}, expected bytes", hint=hint)
        found.add(public_key(key, f"a trusted key of {len(key)} bytes"))
    return frozenset(found)


def refusal(kind: bytes, message: bytes, signature: KeySignature | None, keys: frozenset[bytes]) -> str | None:
    """Why a message is not believed: not signed, by another key, or its signature does not fit; None if it is."""
    if signature is None:
        return "not signed, expected a signature by a trusted key"
    if signature.public not in keys:
        return f"signed by {signature.public.hex()}, which is not among the trusted keys"
    return None if fits(kind, message, signature) else "changed after it was signed: the signature does not fit"


def fits(kind: bytes, message: bytes, signature: KeySignature) -> bool:
    """Whether the signature's key signed this message."""
    module = _ed25519()
    from cryptography.exceptions import InvalidSignature

    try:
        module.Ed25519PublicKey.from_public_bytes(signature.public).verify(signature.proof, kind + message)
    except (InvalidSignature, ValueError):
        return False
    return True


def public_key(data: bytes, name: str) -> bytes:
    """A public key from a file's bytes."""
    return _plain(data) or _from_pem(data, name, "public", "PUBLIC KEY")


def private_key(data: bytes, name: str) -> bytes:
    """A private key from a file's bytes."""
    return _plain(data) or _from_pem(data, name, "private", "PRIVATE KEY")


def _plain(data: bytes) -> bytes | None:
    if len(data) == 32:
        return data
    match = _HEX.fullmatch(data)
    return None if match is None else bytes.fromhex(match[1].decode())


def _from_pem(data: bytes, name: str, kind: str, label: str) -> bytes:
    module = _ed25519()
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization

    if f"-----BEGIN {label}-----".encode() not in data:
        raise UsageError(f"{name} is not a {kind} ed25519 key, expected {_FORMS}")
    try:
        key = serialization.load_pem_private_key(data, None) if kind == "private" else serialization.load_pem_public_key(data)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise UsageError(f"{name} is not a {kind} ed25519 key: {error}") from error
    if isinstance(key, module.Ed25519PrivateKey):
        return bytes(key.private_bytes_raw())
    if isinstance(key, module.Ed25519PublicKey):
        return bytes(key.public_bytes_raw())
    raise UsageError(f"{name} is a key of another kind, expected ed25519")


def _ed25519() -> Any:
    try:
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError as error:
        raise ToolchainError("signing needs the package cryptography", hint="pip install cryptography") from error
    return ed25519
