"""Command line flags made from a configuration dataclass, and command lines made from one.

The dataclass gives names, types and defaults; `Flag` adds what a reader of `--help` needs. A field
without a `Flag` keeps its default.

    command = as_command(NodeConfig, {"port": Flag("Port of the gRPC service.", "Network")}, run)

Every flag has an environment variable: `--http-port` is KVMESH_HTTP_PORT. A command with presets
has `--preset` too: the command line goes before the environment, and both before the preset.
"""

from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, dataclass, fields
from inspect import Parameter, Signature
from types import UnionType
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import typer

from kvmesh.cli.presets import PRESETS, apply_preset, tell_preset

C = TypeVar("C")
CHOSEN = ("COMMANDLINE", "ENVIRONMENT")
"""Sources of values that are the user's own."""


@dataclass(frozen=True, slots=True)
class Flag:
    """What a field's type does not tell. `panel` groups flags in the help."""

    help: str
    panel: str
    name: str | None = None  # None: the field's name
    env: str | None = None  # None: from the flag's name
    also_env: tuple[str, ...] = ()  # variables of a standard that say the same
    choices: tuple[str, ...] | None = None
    least: float | None = None
    most: float | None = None
    default_text: str | None = None  # shown where the default is no value: "the model's own"
    positional: bool = False  # without its name


def as_command(
    config_type: type[C],
    flags: Mapping[str, Flag],
    run: Callable[[C], None],
    *,
    presets: bool = False,
) -> Callable[..., None]:
    """A function for typer with one option a flag, which calls `run` with the configuration.

    With `presets` it has `--preset` too, and tells what that set. A ValueError of the configuration
    is the user's to mend, and is shown as such.
    """

    def command(context: typer.Context, preset: str | None = None, **values: Any) -> None:
        given = {name: tuple(v) if isinstance(v, list) else v for name, v in values.items()}
        if preset is not None:
            given = _with_preset(preset, given, flags, context)
        try:
            config = config_type(**given)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from error
        run(config)

    hints = get_type_hints(config_type)
    parameters = [
        _parameter(field, hints[field.name], flags[field.name])
        for field in fields(config_type)  # type: ignore[arg-type]
        if field.name in flags
    ]
    parameters = [
        Parameter("context", Parameter.KEYWORD_ONLY, annotation=typer.Context),
        *parameters,
    ]
    if presets:
        parameters.append(_preset_parameter())
    command.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in parameters}
    return command


def as_arguments(config: object, flags: Mapping[str, Flag]) -> list[str]:
    """The command line that makes `config` again, whatever the environment says."""
    arguments: list[str] = []
    for name, flag in flags.items():
        option, value = _option(name, flag), getattr(config, name)
        if isinstance(value, bool):
            arguments.append(f"--{option}" if value else f"--no-{option}")
        elif isinstance(value, tuple):
            arguments += [part for item in value for part in (f"--{option}", str(item))]
        elif value is not None:
            arguments += [f"--{option}", str(value)]
    return arguments


def _with_preset(
    preset: str, given: Mapping[str, Any], flags: Mapping[str, Flag], context: typer.Context
) -> dict[str, Any]:
    """`given`, where the user has not chosen, as the preset has it."""
    sources = {name: context.get_parameter_source(name) for name in given}
    chosen = {name for name, source in sources.items() if source and source.name in CHOSEN}
    values, applied = apply_preset(preset, given, chosen)
    kept = {name: given[name] for name in PRESETS[preset].values if name in chosen}
    by_option = ({_option(n, flags[n]): value for n, value in d.items()} for d in (applied, kept))
    tell_preset(preset, *by_option)
    return values


def _preset_parameter() -> Parameter:
    info = typer.Option(
        None,
        "--preset",
        help="Settings for a kind of work. What you set yourself, here or in the environment, goes "
        "before them; `kvmesh plan` shows what they set.",
        rich_help_panel="Preset",
        show_envvar=False,
        envvar="KVMESH_PRESET",
        show_default="none",
    )
    return Parameter(
        "preset", Parameter.KEYWORD_ONLY, default=info, annotation=Literal[tuple(PRESETS)] | None
    )


def _option(name: str, flag: Flag) -> str:
    return flag.name or name.replace("_", "-")


def _variable(option: str, flag: Flag) -> str:
    return flag.env or "KVMESH_" + option.upper().replace("-", "_")


def _parameter(field: Field[Any], hint: Any, flag: Flag) -> Parameter:
    option = _option(field.name, flag)
    declared = f"--{option}/--no-{option}" if hint is bool else f"--{option}"
    default = ... if field.default is MISSING else field.default
    if flag.positional:
        info = typer.Argument(
            default, help=flag.help, envvar=_variable(option, flag), show_envvar=False
        )
        return Parameter(field.name, Parameter.KEYWORD_ONLY, default=info, annotation=_plain(hint))
    info = typer.Option(
        default,
        declared,
        help=flag.help,
        rich_help_panel=flag.panel,
        show_envvar=False,  # the rule is simple, and the lines are short
        envvar=[_variable(option, flag), *flag.also_env],
        min=flag.least,
        max=flag.most,
        show_default=flag.default_text or True,
    )
    annotation = Literal[flag.choices] if flag.choices else _plain(hint)
    return Parameter(field.name, Parameter.KEYWORD_ONLY, default=info, annotation=annotation)


def _plain(hint: Any) -> Any:
    """The form of a type that typer knows: tuple[str, ...] is list[str]."""
    if get_origin(hint) is tuple:
        return list[get_args(hint)[0]]  # type: ignore[misc]
    if isinstance(hint, UnionType):
        kept = [part for part in get_args(hint) if part is not type(None)]
        return kept[0] | None
    return hint
