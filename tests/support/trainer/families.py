"""Jobs with a tiny model of any family, and the weights that they train."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load

from tests.support.trainer.rank_harness import CLASSES, Job, JobKind, make_tokenizer

SIZE = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "max_position_embeddings": 64,
}


def weights(job: Job) -> dict[str, torch.Tensor]:
    """The weights of the final adapter."""
    assert job.ended().reason == "Completed", job.errors()
    return load(job.store().read("final")["adapter_model.safetensors"])


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    """Whether two adapters are the same in every bit."""
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def of_family(family: str, kind: JobKind = CLASSES, **more: Any) -> JobKind:
    """A job with a tiny model of another family. `more`: of its config."""
    causal = "LMHeadModel" if family == "GPT2" else "ForCausalLM"
    head = "ForSequenceClassification" if kind is CLASSES else causal

    def make(directory: Path) -> None:
        words = make_tokenizer(directory)
        config = getattr(transformers, f"{family}Config")(vocab_size=words, pad_token_id=0, num_labels=2, **SIZE | more)
        with torch.random.fork_rng():
            torch.manual_seed(0)
            getattr(transformers, f"{family}{head}")(config).save_pretrained(directory)

    return JobKind(kind.manifest, make, kind.rows)
