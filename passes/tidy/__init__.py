"""Tidying: graphs lose what is dead, constant, twice there or written in a roundabout way."""
