"""Reads tensors out of safetensors files. Pickle is refused: loading it runs code from the file."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from cache_node.model.damaged import DamagedFileError, read_json_object, reading

INDEX_NAME = "model.safetensors.index.json"
PICKLE_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt")


def checkpoint_files(directory: Path) -> list[Path]:
    """The safetensors files of a model, sorted by name.

    Raises ValueError where only pickle files are found, FileNotFoundError where a shard or all
    weights are missing, DamagedFileError where the index is none.
    """
    index = directory / INDEX_NAME
    if index.is_file():
        shards = read_json_object(index).get("weight_map")
        if not isinstance(shards, dict):
            raise DamagedFileError(index, "it has no weight_map")
        names = sorted(set(shards.values()))
        return [_shard(directory, name) for name in names]
    files = sorted(directory.glob("*.safetensors"))
    if not files:
        raise _no_weights(directory)
    return files


class Checkpoint:
    """The tensors of a model directory by name, over one file or several shards."""

    def __init__(self, directory: Path) -> None:
        """Raises what `checkpoint_files` does, DamagedFileError for a file that is cut short."""
        self._directory = directory
        files = [_open(path) for path in checkpoint_files(directory)]
        self._file_of = {name: file for file in files for name in file.keys()}  # noqa: SIM118

    def __contains__(self, name: str) -> bool:
        return name in self._file_of

    def some_tensor(self, name: str) -> torch.Tensor:
        """One that is there, of whatever shape and type."""
        value: torch.Tensor = self._file_of[name].get_tensor(name)
        return value

    def tensor(self, name: str, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Raises ValueError when the tensor is missing or has another shape."""
        if name not in self._file_of:
            raise ValueError(f"{self._directory}: tensor {name} is missing from the checkpoint")
        value = self.some_tensor(name)
        if tuple(value.shape) != tuple(shape):
            raise ValueError(
                f"{self._directory}: tensor {name} has shape {tuple(value.shape)}, "
                f"config.json asks for {tuple(shape)}"
            )
        return value.to(dtype)


def _open(path: Path) -> Any:
    with reading(path):
        return safe_open(path, framework="pt")


def _shard(directory: Path, name: str) -> Path:
    path = directory / name
    if path.suffix != ".safetensors" or path.parent != directory:
        raise ValueError(
            f"{directory / INDEX_NAME} names {name!r}: not a safetensors file beside it"
        )
    if not path.is_file():
        raise FileNotFoundError(f"{path} is named by {INDEX_NAME} but is missing: copy all shards")
    return path


def _no_weights(directory: Path) -> Exception:
    pickles = [p.name for p in sorted(directory.iterdir()) if p.suffix in PICKLE_SUFFIXES]
    if pickles:
        return ValueError(
            f"{directory} holds only pickle weights ({pickles[0]}), which can run code when "
            "loaded; save the model as safetensors first"
        )
    return FileNotFoundError(f"{directory} holds no *.safetensors file")
