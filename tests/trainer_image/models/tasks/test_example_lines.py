"""The Python that `tensafe run` prints at its end: it runs with the model and tokenizer of the task."""

import pytest
import torch
import transformers
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

from tensorguard.models.tasks import task_named
from tests.support.trainer.rank_harness import make_model, make_tag_model, make_tokenizer


def make_language_model(folder):
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    torch.manual_seed(0)
    LlamaForCausalLM(LlamaConfig(vocab_size=make_tokenizer(folder), **sizes)).save_pretrained(folder)


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("CausalLM", make_language_model),
        ("SequenceClassification", make_model),
        ("TokenClassification", make_tag_model),
    ],
)
def test_printed_lines_show_a_result(name, make, tmp_path, capsys):
    make(tmp_path)
    task = task_named(name, labels=2)
    base = getattr(transformers, task.auto_class).from_pretrained(tmp_path)
    capsys.readouterr()
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    exec("\n".join(task.example_lines()), {"model": base, "base": base, "tokenizer": tokenizer})
    assert capsys.readouterr().out.strip()
