"""`torch.compile`: the backend, what its graphs share, and the tensors that they write."""
