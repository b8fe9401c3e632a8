"""How an engine runs: file format, loader, and an executor per part."""

from .contents import Contract, ContractRow, EngineContents, PartContents, Port
from .engine import Engine
from .file import write_engine
from .reader import Reading, read_engine
from .weights import Constant

__all__ = [
    "Constant",
    "Contract",
    "ContractRow",
    "Engine",
    "EngineContents",
    "PartContents",
    "Port",
    "Reading",
    "read_engine",
    "write_engine",
]
