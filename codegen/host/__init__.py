"""Plans to host programs."""
