"""`python -m fumehood` is the command line."""

from fumehood.faces.cli.main import command

if __name__ == "__main__":
    command()
