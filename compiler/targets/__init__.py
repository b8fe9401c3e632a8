"""Targets: what an engine can be built for, and how a module becomes a part of one."""
