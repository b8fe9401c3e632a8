"""Targets: what an engine can be built for, by name, and what this machine is."""
