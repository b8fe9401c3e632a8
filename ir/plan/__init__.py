"""Plans: the host program of an engine, what it does in which order, and where everything lies."""

from .json import from_json, to_json
from .plan import SLOT_ALIGNMENT, Plan, Planned, segments, slot_offsets
from .steps import VALUE, Call, Check, Copy, Guard, Host, Launch, Step, Variant, Zero, called, is_native, reads, touched, writes
from .storage import Alias, Buffer, Slot, State, StateDeclaration, Storage

__all__ = [
    "SLOT_ALIGNMENT",
    "VALUE",
    "Alias",
    "Buffer",
    "Call",
    "Check",
    "Copy",
    "Guard",
    "Host",
    "Launch",
    "Plan",
    "Planned",
    "Slot",
    "State",
    "StateDeclaration",
    "Step",
    "Storage",
    "Variant",
    "Zero",
    "called",
    "from_json",
    "is_native",
    "reads",
    "segments",
    "slot_offsets",
    "to_json",
    "touched",
    "writes",
]
