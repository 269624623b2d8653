"""The shape of the model that a name means: a built-in one, a directory, a GGUF file."""

import re
from difflib import get_close_matches
from pathlib import Path

from cache_node.model.builtin import ModelNotFoundError
from cache_node.model.damaged import read_json_object, reading
from cache_node.plan.known_models import KNOWN_MODELS
from cache_node.plan.shape import ModelShape, shape_of

_TUNED = re.compile(r"-(instruct|chat|it|hf|base)$")


def find_shape(model: str) -> ModelShape:
    """Nothing is downloaded or converted. Raises ModelNotFoundError with names that are near,
    UnsupportedModelError with a field that is missing, DamagedFileError, OSError.
    """
    path = Path(model).expanduser()
    if path.is_dir():
        return _of_directory(path)
    if path.suffix == ".gguf" and path.is_file():
        return _of_gguf(path)
    name = known_name(model)
    if name not in KNOWN_MODELS:
        raise ModelNotFoundError(_unknown(model, name))
    known = KNOWN_MODELS[name]
    return shape_of(name, known.source, known.fields)


def known_name(model: str) -> str:
    """As the table spells it: meta-llama/Meta-Llama-3-70B-Instruct is llama-3-70b."""
    name = model.rsplit("/", 1)[-1].lower().replace("_", "-").removeprefix("meta-")
    while (shorter := _TUNED.sub("", name)) != name:
        name = shorter
    return name


def _of_directory(path: Path) -> ModelShape:
    config = path / "config.json"
    if not config.is_file():
        raise ModelNotFoundError(f"model: {path} has no config.json: not a model directory")
    return shape_of(path.resolve().name, str(config), read_json_object(config))


def _of_gguf(path: Path) -> ModelShape:
    """From its metadata: a node converts the weights to its own dtype."""
    from cache_node.model.gguf_config import gguf_config
    from cache_node.model.gguf_metadata import GgufMetadata, PlainGgufReader

    with reading(path):
        reader = PlainGgufReader(path)
        tied = "output.weight" not in {tensor.name for tensor in reader.tensors}
        fields = gguf_config(GgufMetadata(reader), tied)
    return shape_of(path.stem, str(path), fields)


def _unknown(model: str, name: str) -> str:
    near = get_close_matches(name, KNOWN_MODELS, n=3, cutoff=0.5)
    hint = f"near it are {', '.join(near)}" if near else f"known are {', '.join(KNOWN_MODELS)}"
    return (
        f"model: {model!r} is no known model, no directory with a config.json and no .gguf file; "
        f"{hint}"
    )
