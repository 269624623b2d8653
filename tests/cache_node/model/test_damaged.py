"""Files that are cut short, empty or something else: named, with what to do."""

import pytest

from cache_node.config import NodeConfig
from cache_node.load_executor import load_executor
from cache_node.model import source
from cache_node.model.builtin import BUILTIN_MODELS, BuiltinModel
from cache_node.model.source import find_model
from tests.cache_node.model.gguf_file import write_gguf
from tests.tiny_model import save_tiny


def ignore(stage, fraction):
    pass


def cut(content):
    return content[: len(content) // 2]


@pytest.mark.parametrize("damage", [cut, lambda _: b"", lambda _: b"\xff" * 4096])
@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_a_damaged_file_of_a_model_is_named(tmp_path, name, damage):
    directory = save_tiny(tmp_path / "model")
    path = directory / name
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(ValueError, match=f"{path} cannot be read: .*; copy or download it again"):
        load_executor(NodeConfig(num_blocks=4), directory, ignore)


def test_a_configuration_that_is_no_object_is_named(tmp_path):
    directory = save_tiny(tmp_path / "model")
    (directory / "config.json").write_text("[1]")
    with pytest.raises(ValueError, match=r"config\.json cannot be read: it is not a JSON object"):
        load_executor(NodeConfig(num_blocks=4), directory, ignore)


@pytest.mark.parametrize("content", ["{}", "{", '{"weight_map": 1}'])
def test_a_damaged_index_of_shards_is_named(tmp_path, content):
    directory = save_tiny(tmp_path / "model")
    index = directory / "model.safetensors.index.json"
    index.write_text(content)
    with pytest.raises(ValueError, match=f"{index} cannot be read: "):
        load_executor(NodeConfig(num_blocks=4), directory, ignore)


@pytest.mark.parametrize("kept", [0.0, 0.01, 0.2, 0.5, 0.99])
def test_a_gguf_file_that_is_cut_short_is_named_and_leaves_nothing(tmp_path, kept):
    gguf = write_gguf(tmp_path / "tiny.gguf", save_tiny(tmp_path / "model"))
    content = gguf.read_bytes()
    gguf.write_bytes(content[: int(len(content) * kept)])
    with pytest.raises(ValueError, match=f"{gguf} cannot be read: .*; copy or download it again"):
        find_model(str(gguf), tmp_path / "cache", ignore)
    left = [path.name for path in (tmp_path / "cache" / "models").iterdir()]
    assert [name for name in left if not name.endswith(".lock")] == []


def test_what_a_killed_download_left_is_removed_by_the_next(tmp_path, monkeypatch):
    model = BuiltinModel("lost", ["lost-package"], "1.0", "0" * 64)
    monkeypatch.setitem(BUILTIN_MODELS, "lost", model)
    found = []

    def installed(_model, scratch):
        found.append([path.name for path in scratch.iterdir()])
        raise OSError("no more")

    monkeypatch.setattr(source, "installed_gguf", installed)
    models = tmp_path / "models"
    target = f"lost-{model.sha256[:16]}-v{source.CONVERTER_VERSION}"
    (models / f".download-{target}").mkdir(parents=True)
    (models / f".download-{target}" / "half.whl").write_bytes(b"half")
    with pytest.raises(OSError, match="no more"):
        find_model("lost", tmp_path, ignore)
    assert found == [[]]
    assert [path.name for path in models.iterdir()] == [f".{target}.lock"]
