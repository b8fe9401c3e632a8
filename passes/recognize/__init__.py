"""Recognition: what models spell in many ops becomes the one op that it means."""
