"""What the commands do, one module each: the command line and the Python API call the same functions."""
