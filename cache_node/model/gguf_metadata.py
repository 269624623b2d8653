"""Reads GGUF files: the reader, and the key-value part."""

from typing import Any

import numpy as np
from gguf import GGUFReader

from cache_node.model.config_fields import UnsupportedModelError


class PlainGgufReader(GGUFReader):
    """The package's reader cuts a piece out of a np.memmap for each word of a vocabulary, and each
    time numpy looks whether the piece shares its file. A plain array over the same memory has no
    file: 262,144 words then take 5 s instead of 25.
    """

    @property  # type: ignore[override]
    def data(self) -> np.ndarray:
        return self._data

    @data.setter
    def data(self, mapped: np.ndarray) -> None:
        self._data = np.asarray(mapped)


class GgufMetadata:
    def __init__(self, reader: GGUFReader) -> None:
        self._reader = reader
        self.architecture = str(self.required("general.architecture"))

    def get(self, key: str, default: Any = None) -> Any:
        field = self._reader.get_field(key)
        return default if field is None else field.contents()

    def required(self, key: str) -> Any:
        """Raises UnsupportedModelError with the key's name where it is missing."""
        value = self.get(key)
        if value is None:
            raise UnsupportedModelError(f"the GGUF file has no {key}")
        return value

    def model(self, key: str, default: Any = None) -> Any:
        """As `get`, of a key that starts with the architecture's name."""
        return self.get(f"{self.architecture}.{key}", default)

    def model_required(self, key: str) -> Any:
        return self.required(f"{self.architecture}.{key}")

    def special_ids(self) -> dict[str, int]:
        """bos_token_id, eos_token_id and the like, as far as the file has them."""
        names = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}
        ids = {name: self.get(f"tokenizer.ggml.{key}_token_id") for name, key in names.items()}
        return {f"{name}_token_id": int(i) for name, i in ids.items() if i is not None}
