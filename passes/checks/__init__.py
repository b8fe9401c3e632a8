"""Checks of indices and divisors: what is known of integers, and what must be looked at when a program runs."""
