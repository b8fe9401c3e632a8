"""Checkpoints of language models: GGUF files, and folders with config.json and safetensors."""
