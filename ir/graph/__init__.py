"""Graph modules: what they are, their text, verifier, rewriter and meaning."""

from .graph import Builder, ConstantData, Graph, Module, Op, State, Value

__all__ = [
    "Builder",
    "ConstantData",
    "Graph",
    "Module",
    "Op",
    "State",
    "Value",
]
