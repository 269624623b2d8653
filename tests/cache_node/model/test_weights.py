"""Weights come from safetensors only, and a fingerprint tells models apart."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from cache_node.model.fingerprint import model_fingerprint
from cache_node.model.weights import INDEX_NAME, Checkpoint, checkpoint_files
from tests.tiny_model import save_tiny


@pytest.fixture
def tiny(tmp_path):
    directory = save_tiny(tmp_path / "model")
    (directory / "tokenizer.json").write_text("{}")
    return directory


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "model.pth"])
def test_pickle_is_refused(tmp_path, name):
    (tmp_path / name).write_bytes(b"")
    with pytest.raises(ValueError, match="pickle"):
        checkpoint_files(tmp_path)


def test_an_empty_directory(tmp_path):
    with pytest.raises(FileNotFoundError, match="safetensors"):
        checkpoint_files(tmp_path)


def test_a_missing_shard_is_named(tmp_path):
    index = {"weight_map": {"a": "model-00001-of-00002.safetensors"}}
    (tmp_path / INDEX_NAME).write_text(json.dumps(index))
    with pytest.raises(FileNotFoundError, match="00001"):
        checkpoint_files(tmp_path)


@pytest.mark.parametrize("name", ["../other.safetensors", "model.bin"])
def test_an_index_names_only_safetensors_beside_it(tmp_path, name):
    (tmp_path / INDEX_NAME).write_text(json.dumps({"weight_map": {"a": name}}))
    with pytest.raises(ValueError, match="safetensors file beside it"):
        checkpoint_files(tmp_path)


def test_missing_and_misshapen_tensors_are_named(tiny):
    checkpoint = Checkpoint(tiny)
    with pytest.raises(ValueError, match=r"no\.such is missing"):
        checkpoint.tensor("no.such", (1,), torch.float32)
    with pytest.raises(ValueError, match=r"model\.norm\.weight has shape"):
        checkpoint.tensor("model.norm.weight", (47,), torch.float32)


def test_a_copy_of_the_files_has_the_same_fingerprint(tiny, tmp_path):
    copy = shutil.copytree(tiny, tmp_path / "elsewhere")
    assert model_fingerprint(copy) == model_fingerprint(tiny)
    assert len(model_fingerprint(copy)) == 16


def test_who_saved_the_config_does_not_matter(tiny):
    before = model_fingerprint(tiny)
    _edit_config(tiny, transformers_version="9.9.9")
    assert model_fingerprint(tiny) == before


def test_another_config_is_another_model(tiny):
    before = model_fingerprint(tiny)
    _edit_config(tiny, rms_norm_eps=1e-3)
    assert model_fingerprint(tiny) != before


def test_one_tuned_tensor_is_another_model(tiny):
    before = model_fingerprint(tiny)
    tensors = load_file(tiny / "model.safetensors")
    tensors["model.layers.1.mlp.up_proj.weight"] += 0.01
    save_file(tensors, tiny / "model.safetensors", metadata={"format": "pt"})
    assert model_fingerprint(tiny) != before


def _edit_config(directory, **fields):
    path = directory / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))
