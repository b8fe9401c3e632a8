"""Records with signatures: what lies in a store or a file is a record's canonical bytes, and who vouches for them."""

from __future__ import annotations

import re

from ..runtime import sign
from ..runtime.sign import RECORD, KeySignature
from .record import Record, RecordError, decode, encode

LONGEST = 256
"""Bytes that a signature adds at most."""

_SIGNED = re.compile(rb" ed25519:([0-9a-f]{64}):([0-9a-f]{128})\Z")


class UnbelievedError(RecordError):
    """A record is whole, and not signed as it should be."""


def seal(record: Record, private_key: bytes | None = None) -> bytes:
    """The record's bytes, and behind them the signature of a private key."""
    data = encode(record)
    if private_key is None:
        return data
    signature = sign.sign(RECORD, data, private_key)
    return data + f" ed25519:{signature.public.hex()}:{signature.proof.hex()}".encode()


def unseal(data: bytes, id: str | None = None, keys: frozenset[bytes] | None = None) -> tuple[Record, KeySignature | None]:
    """A record and its signature; RecordError for a damaged one, and for one that none of the keys signed.

    Without keys no signature is asked for, but one that is there must fit.
    """
    match = _SIGNED.search(data)
    body = data if match is None else data[: match.start()]
    signature = None if match is None else KeySignature(bytes.fromhex(match[1].decode()), bytes.fromhex(match[2].decode()))
    if keys is None:
        refusal = None if signature is None or sign.fits(RECORD, body, signature) else "changed after it was signed"
    else:
        refusal = sign.refusal(RECORD, body, signature, keys)
    record = decode(body, id)
    if refusal is not None:
        raise UnbelievedError(f"record is {refusal}")
    return record, signature


def signer(private_key: bytes | None) -> bytes | None:
    """The public key of a private one."""
    return None if private_key is None else sign.sign(RECORD, b"", private_key).public
