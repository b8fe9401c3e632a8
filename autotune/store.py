"""Stores of tuning records behind one get, put and list; a damaged object is a miss with a note, never an error.

Every signer has an object of its own in a record, and those who do not sign share one: a signature vouches for what its
owner knew, and nobody's writing takes another's away. What is read is the union of them all, or of those that trusted
keys have signed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from .objects import ObjectStore, object_name, open_objects
from .record import Record, RecordError, merge
from .signed import seal, signer, unseal


@dataclass
class RecordStore:
    """Records by id in one place; `notes` collects what was passed over while reading.

    With `keys` only what one of these public keys has signed is read; what is written is signed with `signing_key`.
    """

    backend: ObjectStore
    notes: list[str] = field(default_factory=list)
    keys: frozenset[bytes] | None = None
    signing_key: bytes | None = field(default=None, repr=False)

    @property
    def name(self) -> str:
        """The store's address without a password."""
        return re.sub(r"//[^/@]*@", "//", self.backend.url)

    def get(self, id: str) -> Record | None:
        """The record of an id: the union of all that was written to it."""
        found = self._read(id, self.keys)
        return merge(record for record, _ in found.values()) if found else None

    def put(self, record: Record) -> Record:
        """Add a record's samples; the union with what was there. OSError if the store cannot be written."""
        present = self._read(record.id, None)
        ours = signer(self.signing_key)
        own = {name: held for name, (held, by) in present.items() if by == ours}
        data = seal(merge([record, *own.values()]), self.signing_key)
        if set(own) != {object_name(data)}:
            kept = self.backend.add(record.id, data)
            self.backend.remove(record.id, [name for name in own if name != kept])
        return merge([record, *(held for held, _ in present.values())])

    def list(self) -> Iterator[Record]:
        """Every record, by id."""
        for id in dict.fromkeys(id for id, _ in self.backend.names()):
            record = self.get(id)
            if record is not None:
                yield record

    def delete(self, id: str) -> int:
        """Remove all objects of an id; how many they were."""
        names = [name for known, name in self.backend.names() if known == id]
        self.backend.remove(id, names)
        return len(names)

    def damaged(self) -> Iterator[tuple[str, str, RecordError]]:
        """(id, object, why) of every object that cannot be used."""
        for id in dict.fromkeys(id for id, _ in self.backend.names()):
            for name, data in sorted(self.backend.read(id).items()):
                try:
                    _check(id, name, data, self.keys)
                except RecordError as error:
                    yield id, name, error

    def size(self) -> tuple[int, int, int]:
        """(records, objects, bytes)."""
        names = self.backend.names()
        ids = dict.fromkeys(id for id, _ in names)
        return len(ids), len(names), sum(len(data) for id in ids for data in self.backend.read(id).values())

    def _read(self, id: str, keys: frozenset[bytes] | None) -> dict[str, tuple[Record, bytes | None]]:
        """The objects of an id that can be used, with their signers."""
        found: dict[str, tuple[Record, bytes | None]] = {}
        for name, data in sorted(self.backend.read(id).items()):
            try:
                found[name] = _check(id, name, data, keys)
            except RecordError as error:
                self.notes.append(f"record {id[:16]} in {self.name} is passed over: {error.message}")
        return found


def _check(id: str, name: str, data: bytes, keys: frozenset[bytes] | None) -> tuple[Record, bytes | None]:
    record, signature = unseal(data, id, keys)
    if object_name(data) != name:
        raise RecordError("record is damaged: its name is not its digest")
    return record, None if signature is None else signature.public


def open_store(url: str, keys: frozenset[bytes] | None = None, signing_key: bytes | None = None) -> RecordStore:
    """The store at an address."""
    return RecordStore(open_objects(url), keys=keys, signing_key=signing_key)
