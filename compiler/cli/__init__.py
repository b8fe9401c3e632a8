"""The command line: one module per command, one place for errors and output."""
