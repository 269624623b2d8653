"""How every benchmark tells what it measured: a table with its goals, or one JSON object."""

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from bench.figures import Goal
from bench.machine import describe_machine
from kvmesh.cli.tables import console_for_tables

Json = Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")]
"""The option that every benchmark has."""

MISSED = 2
"""Exit code when a goal was missed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What a benchmark found. The first column of `rows` names what the others measure."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    data: Mapping[str, Any]  # the same for programs
    goals: Sequence[Goal] = ()
    notes: Sequence[str] = ()


def tell(report: Report, *, as_json: bool) -> None:
    """Prints the report with machine, commit and command. Ends the command with exit code 2 when a
    goal was missed.
    """
    if as_json:
        goals = [goal.as_json() for goal in report.goals]
        about = {"goals": goals, "machine": describe_machine(), "command": command_line()}
        typer.echo(json.dumps({**report.data, **about}))
    else:
        show(report)
        console = console_for_tables()
        for goal in report.goals:
            console.print(escape(str(goal)), style="green" if goal.met else "bold red")
        console.print(machine_line(), style="dim")
        console.print(escape(f"command: {command_line()}"), style="dim")
    if not all(goal.met for goal in report.goals):
        raise typer.Exit(MISSED)


def show(report: Report) -> None:
    """Prints the table and its notes alone."""
    console = console_for_tables()
    table = Table(title=report.title)
    for number, column in enumerate(report.columns):
        table.add_column(column, justify="right" if number else "left")
    for row in report.rows:
        table.add_row(*map(escape, row))
    console.print(table)
    for note in report.notes:
        console.print(escape(note))


def machine_line() -> str:
    """What a figure was measured on, and the commit."""
    return " · ".join(f"{name}: {value}" for name, value in describe_machine().items())


def command_line() -> str:
    """What was called."""
    return " ".join(["kvmesh", *sys.argv[1:]])
