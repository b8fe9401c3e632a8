"""Language models: what a checkpoint says of itself, its architecture as a graph, its tokenizer."""
