"""What users bring: how a model is imported, its shapes and the inputs to try it with."""
