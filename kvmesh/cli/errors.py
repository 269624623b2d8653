"""How a command says that it cannot do what it was asked."""

from typing import NoReturn

import typer


def fail(message: str) -> NoReturn:
    """Ends the command with one line on stderr and exit code 1."""
    typer.secho(f"kvmesh: {message}", fg="red", err=True)
    raise typer.Exit(1)
