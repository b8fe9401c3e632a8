"""Backends: how a module becomes a part of an engine, one for each family of targets, and how an engine is opened again."""
