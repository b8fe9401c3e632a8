"""What a program and a machine are: types, dimensions, ops, and the forms of a program."""
