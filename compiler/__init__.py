"""The driver: what a user touches, from a model file or a torch graph to an engine."""
