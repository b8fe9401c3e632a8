"""Plans to host programs, and the routines of the host that are written in C."""
