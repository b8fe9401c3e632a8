"""`python -m ourcc`: the command line."""

from .compiler.cli.main import main

if __name__ == "__main__":
    main()
