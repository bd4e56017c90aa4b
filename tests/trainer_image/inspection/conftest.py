"""A small model folder without weights, jobs that use it, and inspections of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from tensafe_api.manifest.text import parse_job
from tensafe_api.resolve import resolve_job
from tensafe_api.resources.job import Spec, TenSafeTrainingJob

WORDS = ("the", "dog", "cat", "runs", "sleeps", "well", "ill", "fever", "cough", "room", "one", "two", "three", "four")


def word_tokenizer() -> PreTrainedTokenizerFast:
    """A fast tokenizer of whole words, which pads with its end token and adds nothing by itself."""
    vocabulary = {word: number for number, word in enumerate(["<unk>", "<end>", *WORDS])}
    words = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=words, unk_token="<unk>", eos_token="<end>", pad_token="<end>", model_max_length=128
    )


@pytest.fixture(scope="session")
def tokenizer() -> PreTrainedTokenizerFast:
    return word_tokenizer()


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder with a config and a tokenizer."""
    folder = tmp_path_factory.mktemp("model")
    word_tokenizer().save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps({"model_type": "llama"}))
    return str(folder)


def manifest(model: str, columns: dict[str, str], **changes: Any) -> dict[str, Any]:
    """A manifest. `changes`: labels (their number), names, unit, max_length, evaluation; others are of the data set."""
    classes = {"numLabels": changes.pop("labels", 0), "labelNames": changes.pop("names", [])}
    task = {"task": "TokenClassification" if "tags" in columns else "SequenceClassification", **classes}
    unit = {"kind": "Example", "atLeast": 10, **changes.pop("unit", {})}
    length = changes.pop("max_length", 32)
    evaluation = changes.pop("evaluation", None)
    return {
        "apiVersion": "tensafe.io/v1alpha1",
        "kind": "TenSafeTrainingJob",
        "metadata": {"name": "wards"},
        "spec": {
            "model": {"name": model, **(task if classes["numLabels"] else {})},
            "dataset": {"uri": "data.jsonl", "columns": columns, "unit": unit, **changes},
            "evaluation": evaluation,
            "training": {"steps": 10, "maxLength": length, "expectedBatchSize": 10},
            "privacy": {"targetEpsilon": "8", "accountant": "RDP"},
            "checkpoint": {"uri": "out"},
            "cluster": {"workers": 1},
        },
    }


@pytest.fixture
def make_job(model: str) -> Callable[..., TenSafeTrainingJob]:
    """Makes a completed job."""
    return lambda columns, **changes: resolve_job(parse_job(manifest(model, columns, **changes)))[0]


@pytest.fixture
def make_spec(make_job: Callable[..., TenSafeTrainingJob]) -> Callable[..., Spec]:
    """Makes the spec of a completed job."""
    return lambda columns, **changes: make_job(columns, **changes).spec
