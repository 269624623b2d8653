"""`kvmesh model`: brings a model into the form that nodes load."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import structlog
import typer
from rich.console import Console

from cache_node.config import DEFAULT_MODEL
from kvmesh import log
from kvmesh.cli.errors import fail
from kvmesh.cli.screen import Screen


def model(
    name: Annotated[
        str,
        typer.Option("--model", envvar="KVMESH_MODEL", help="As for `kvmesh node --model`."),
    ] = DEFAULT_MODEL,
    cache_dir: Annotated[
        Path | None,
        typer.Option(
            envvar="KVMESH_CACHE",
            help="Where converted models are kept.",
            show_default="~/.cache/kvmesh",
        ),
    ] = None,
) -> None:
    """Fetch and convert a model ahead of time, and print the directory where it lies.

    Examples:

        kvmesh model
        kvmesh model --model ./model.gguf

    Nothing is done twice: what lies there is used by every later start.
    """
    from cache_node.model.source import find_model

    screen = Screen(Console(stderr=True, highlight=False))
    try:
        directory = find_model(name, cache_dir, _logged() if log.wants_json() else _shown(screen))
    except (ValueError, OSError) as error:
        fail(str(error))
    finally:
        screen.still()
    typer.echo(directory)


def _logged() -> Callable[[str, float | None], None]:
    """Progress as log lines: begin and end of each stage."""
    log.configure("model")
    logger = structlog.get_logger()

    def progress(stage: str, done: float | None) -> None:
        if done in (None, 0.0, 1.0):
            logger.info("progress", stage=stage, done=done)

    return progress


def _shown(screen: Screen) -> Callable[[str, float | None], None]:
    return lambda stage, done: screen.progress("model", stage, done)
