"""Reports: what a command has to say, as data that prints as tables or as JSON."""
