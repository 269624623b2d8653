"""Models on the Hugging Face hub, by name: organisation/model."""

import re
from collections.abc import Iterator
from pathlib import Path

from cache_node.model.builtin import ModelNotFoundError

_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)

_WANTED = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "*.safetensors",
    "*.safetensors.index.json",
)
_UNWANTED = ("*/*", "consolidated*")  # the same weights in another form


def is_hub_name(model: str) -> bool:
    return _NAME.fullmatch(model) is not None


def from_hub(name: str) -> Path:
    """The model's directory in the hub client's own cache (`HF_HOME`), fetched as far as it is not
    there. No code of the model is fetched or run.

    Raises ModelNotFoundError with the reason and what to do.
    """
    # The import takes half a second, which other models need not wait for.
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
    )
    from huggingface_hub.utils.tqdm import disable_progress_bars

    disable_progress_bars()
    try:
        found = snapshot_download(
            name, allow_patterns=list(_WANTED), ignore_patterns=list(_UNWANTED)
        )
    except GatedRepoError:
        reason = "its owner asks for a permission first: get it on the hub, and set HF_TOKEN"
        raise _not_found(name, reason) from None
    except RepositoryNotFoundError:
        reason = "the hub has no public model of that name; for a private one set HF_TOKEN"
        raise _not_found(name, reason) from None
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        causes = list(_causes(error))
        answered = any(isinstance(cause, HfHubHTTPError) for cause in causes)
        what = "the hub did not give it" if answered else "the hub cannot be reached"
        raise _not_found(name, f"{what} ({_first_line(causes[-1])})") from error
    return _checked(name, Path(found))


def _checked(name: str, directory: Path) -> Path:
    """What a node loads is there."""
    if not (directory / "config.json").is_file() or not list(directory.glob("*.safetensors")):
        raise _not_found(name, "it has no config.json with safetensors beside it")
    return directory


def _not_found(name: str, reason: str) -> ModelNotFoundError:
    return ModelNotFoundError(
        f"model {name!r} is no directory here, and from the hub: {reason}. Or name a directory "
        "with config.json and safetensors, a .gguf file, or a built-in model"
    )


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """The client wraps what the network or the hub said; the last is what happened."""
    while error is not None:
        yield error
        error = error.__cause__


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
