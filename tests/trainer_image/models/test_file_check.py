"""Files of a model that were not downloaded as a whole are named before a worker loads them."""

import json
import re

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

from tensafe_api.reasons import Reason
from tensorguard.models.load import load_model
from tensorguard.models.source import ModelNotFoundError, resolve_model
from tensorguard.models.tasks import task_named
from tensorguard.models.tokenizer import load_tokenizer

POINTER = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'7' * 64}\nsize 1048576\n".encode()
WEIGHTS = {name: np.arange(64, dtype=np.float32) for name in ("a", "b")}
SINGLE, SHARDS = "model.safetensors", ("model-1-of-2.safetensors", "model-2-of-2.safetensors")
INDEX = f"{SINGLE}.index.json"


@pytest.fixture
def whole(tmp_path):
    """A folder with a config and one file of weights."""
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    save_file(WEIGHTS, tmp_path / SINGLE)
    return tmp_path


@pytest.fixture
def sharded(whole):
    (whole / SINGLE).unlink()
    for name, file in zip(WEIGHTS, SHARDS, strict=True):
        save_file({name: WEIGHTS[name]}, whole / file)
    (whole / INDEX).write_text(json.dumps({"weight_map": dict(zip(WEIGHTS, SHARDS, strict=True))}))
    return whole


def refused(folder):
    with pytest.raises(ModelNotFoundError, match=r"^spec\.model\.name: .*\.$") as raised:
        resolve_model(str(folder))
    assert raised.value.reason is Reason.MODEL_UNAVAILABLE
    return str(raised.value)


def cut(path, size=-1):
    path.write_bytes(path.read_bytes()[:size])


def test_complete_files_are_accepted(whole):
    assert resolve_model(str(whole)).location == str(whole)


def test_complete_shards_are_accepted(sharded):
    assert resolve_model(str(sharded)).location == str(sharded)


@pytest.mark.parametrize("size", (0, 5, 40, -1), ids=("empty", "length", "header", "one byte"))
def test_cut_weights_are_named(whole, size):
    cut(whole / SINGLE, size)
    assert f"{whole / SINGLE} is cut or damaged: download it again" in refused(whole)


def test_page_in_place_of_weights_is_named(whole):
    (whole / SINGLE).write_text("<html>Please log in.</html>")
    assert f"{whole / SINGLE} is cut or damaged" in refused(whole)


@pytest.mark.parametrize(
    "name", (SINGLE, "config.json", "tokenizer.json", "tokenizer.model", "vocab.txt", "chat_template.jinja")
)
def test_pointer_in_place_of_a_file_is_named(whole, name):
    (whole / name).write_bytes(POINTER)
    assert f"{whole / name} is a Git LFS pointer: run `git lfs pull` in its folder" in refused(whole)


@pytest.mark.parametrize("name", ("pytorch_model.bin", "model.onnx", "tf_model.h5"))
def test_pointer_in_place_of_weights_in_another_format_is_accepted(whole, name):
    (whole / name).write_bytes(POINTER)
    assert resolve_model(str(whole)).location == str(whole)


def test_faults_of_one_shard_are_named(sharded):
    second = sharded / SHARDS[1]
    cut(second)
    assert f"{second} is cut or damaged" in refused(sharded)
    second.write_bytes(POINTER)
    assert f"{second} is a Git LFS pointer" in refused(sharded)
    second.unlink()
    assert f"{second}, which {INDEX} names, does not exist: download it again" in refused(sharded)


def test_faults_of_an_archive_are_named(whole):
    (whole / SINGLE).unlink()
    path = whole / "pytorch_model.bin"
    torch.save({"a": torch.zeros(64)}, path)
    assert resolve_model(str(whole)).location == str(whole)
    cut(path)
    assert f"{path} is cut or damaged" in refused(whole)
    cut(path, 0)
    assert f"{path} is cut or damaged" in refused(whole)
    path.write_bytes(POINTER)
    assert f"{path} is a Git LFS pointer" in refused(whole)


def test_weights_that_may_not_be_read_are_named(whole, monkeypatch):
    def denied(*_args, **_settings):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("tensorguard.models.file_check.safe_open", denied)
    assert f"{whole / SINGLE} cannot be read (permission denied): correct its permissions" in refused(whole)


@pytest.mark.parametrize("content", ('{"model": ', ""), ids=("cut", "empty"))
def test_tokenizer_that_is_not_json_is_named(whole, content):
    (whole / "tokenizer.json").write_text(content)
    sentence = f"{whole / 'tokenizer.json'} is not JSON: correct it, or download it again"
    with pytest.raises(ModelNotFoundError, match=re.escape(sentence)):
        load_tokenizer(resolve_model(str(whole)))


@pytest.mark.parametrize(
    ("name", "content", "found"),
    (
        ("tokenizer.json", "{}", "KeyError: "),
        ("tokenizer_config.json", "[]", "AttributeError: "),
        ("config.json", '{"model_type": "bert", "hidden_size": "many"}', "hidden_size"),
    ),
)
def test_whatever_a_tokenizer_raises_is_one_sentence_with_the_model(whole, name, content, found):
    (whole / name).write_text(content)
    with pytest.raises(ModelNotFoundError, match=r"^spec\.model\.name: '.*' cannot be loaded \(.*: check") as raised:
        load_tokenizer(resolve_model(str(whole)))
    assert str(whole) in str(raised.value) and found in str(raised.value) and "\n" not in str(raised.value)


def test_whatever_loading_weights_raises_is_one_sentence_with_the_model(whole):
    (whole / SINGLE).unlink()
    (whole / "pytorch_model.bin").write_text("not a pickle")
    with pytest.raises(ModelNotFoundError, match=r"cannot be loaded \(UnpicklingError: .*: check its files"):
        load_model(resolve_model(str(whole)), task_named("CausalLM"), init_seed=7)
