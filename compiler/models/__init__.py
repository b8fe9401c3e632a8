"""What users bring: which file is what, how a model is imported, its shapes and the inputs to try it with."""
