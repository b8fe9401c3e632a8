"""Ed25519 signatures over an engine's digest."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ..ir.errors import EngineError, ToolchainError

_CONTEXT = b"ourcc engine v1:"


def sign(digest: str, private_key: bytes) -> tuple[bytes, bytes]:
    """The public key and the signature of a manifest's digest; the private key is 32 raw bytes."""
    private = _ed25519().Ed25519PrivateKey
    if len(private_key) != 32:
        raise EngineError(f"signing key has {len(private_key)} bytes, expected 32")
    key = private.from_private_bytes(private_key)
    public: bytes = key.public_key().public_bytes_raw()
    signature: bytes = key.sign(_CONTEXT + digest.encode())
    return public, signature


def check(path: str, digest: str, signature: tuple[bytes, bytes] | None, trusted_keys: Iterable[bytes]) -> None:
    """Raise EngineError unless one of the trusted keys (32 raw bytes each) signed the digest."""
    if signature is None:
        raise EngineError(f"{path}: engine is not signed, expected a signature by a trusted key")
    public, proof = signature
    if public not in tuple(trusted_keys):
        raise EngineError(f"{path}: engine is signed by {public.hex()}, which is not among the trusted keys")
    module = _ed25519()
    from cryptography.exceptions import InvalidSignature

    try:
        module.Ed25519PublicKey.from_public_bytes(public).verify(proof, _CONTEXT + digest.encode())
    except InvalidSignature as error:
        raise EngineError(f"{path}: signature does not fit the engine") from error


def _ed25519() -> Any:
    try:
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError as error:
        raise ToolchainError("signing needs the package cryptography", hint="pip install cryptography") from error
    return ed25519
