"""The loss of each record, compared with the formulas, and the gradients, compared with finite differences."""

import pytest
import torch
from torch.nn import functional

from tensorguard.models.batch_losses import EvaluationSums, evaluate_batch, record_loss
from tensorguard.models.losses import IGNORE_INDEX, causal_lm_losses, classification_losses, token_classification_losses
from tensorguard.models.tasks import task_named


@pytest.fixture
def logits():
    return torch.randn(3, 5, 11, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@pytest.fixture
def labels():
    labels = torch.randint(11, (3, 5), generator=torch.Generator().manual_seed(1))
    labels[0, 3:] = IGNORE_INDEX
    labels[1] = IGNORE_INDEX
    return labels


def test_causal_loss_is_the_mean_over_the_records_own_learned_tokens(logits, labels):
    found = causal_lm_losses(logits, labels)
    for i in (0, 2):
        expected = functional.cross_entropy(logits[i, :-1], labels[i, 1:], ignore_index=IGNORE_INDEX)
        torch.testing.assert_close(found[i], expected)
    assert found[1] == 0


def test_gradient_of_the_causal_loss_agrees_with_finite_differences(logits, labels):
    assert torch.autograd.gradcheck(lambda x: causal_lm_losses(x, labels), logits.requires_grad_())


def test_record_without_learned_tokens_has_no_gradient_even_if_its_logits_are_nan(logits, labels):
    logits[1] = float("nan")
    logits.requires_grad_()
    losses = causal_lm_losses(logits, labels)
    assert losses[1] == 0 and losses.isfinite().all()
    losses.sum().backward()
    assert (logits.grad[1] == 0).all() and logits.grad.isfinite().all()


def test_first_label_and_last_position_are_not_learned(logits, labels):
    other = labels.clone()
    other[:, 0] = 10 - other[:, 0].clamp(min=0)
    changed = logits.clone()
    changed[:, -1] += 3
    assert torch.equal(causal_lm_losses(logits, labels), causal_lm_losses(changed, other))


@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.float16))
def test_half_precision_logits_are_reduced_in_fp32(logits, labels, dtype):
    half = logits.to(dtype).requires_grad_()
    losses = causal_lm_losses(half, labels)
    assert losses.dtype == torch.float32
    torch.testing.assert_close(losses, causal_lm_losses(half.detach().float(), labels), rtol=0, atol=0)
    losses.sum().backward()
    assert half.grad.dtype == dtype


def test_classification_loss_is_cross_entropy_of_each_record():
    logits = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
    labels = torch.tensor([0, 2, IGNORE_INDEX, 1])
    found = classification_losses(logits, labels)
    assert found[2] == 0
    torch.testing.assert_close(found[3], functional.cross_entropy(logits[3], labels[3]))


def test_single_label_is_refused():
    with pytest.raises(ValueError, match="at least two labels"):
        classification_losses(torch.zeros(2, 1), torch.zeros(2, dtype=torch.long))


def test_tag_loss_is_the_mean_over_the_records_own_labelled_tokens(logits, labels):
    found = token_classification_losses(logits, labels)
    for record in (0, 2):
        learned = labels[record] != IGNORE_INDEX
        each = functional.cross_entropy(logits[record][learned], labels[record][learned], reduction="none")
        torch.testing.assert_close(found[record], each.mean())
    assert float(found[1]) == 0.0
    assert torch.autograd.gradcheck(lambda x: token_classification_losses(x, labels), logits.requires_grad_())


def test_tag_loss_depends_on_no_other_record(logits, labels):
    changed, other = logits.clone(), labels.clone()
    changed[1:], other[1:] = torch.nan, 3
    assert torch.equal(token_classification_losses(logits, labels)[:1], token_classification_losses(changed, other)[:1])
    for rows in (1, 2):
        alone = token_classification_losses(logits[:rows], labels[:rows])
        assert torch.equal(alone, token_classification_losses(logits, labels)[:rows])


def test_tag_loss_of_a_record_without_labels_has_no_gradient(logits, labels):
    logits.requires_grad_()
    token_classification_losses(logits, labels).sum().backward()
    assert not logits.grad[1].any() and not logits.grad[0, 3:].any()
    assert logits.grad[0, :3].all()


@pytest.mark.parametrize("kind", ("bert", "bert-tags", "llama"))
def test_sums_add_up_over_batches_without_dummy_rows(trained, kind):
    model = trained(kind)
    batch = model.batch(0)
    batch["attention_mask"][:, :2] = 1
    if batch["labels"].ndim == 2:
        batch["labels"][:, :2] = 1
    model.model.eval()
    losses = record_loss(model.task)(model.model, batch).detach()
    batch["labels"][2] = IGNORE_INDEX
    whole = evaluate_batch(model.model, batch, model.task)
    parts = [{name: tensor[part] for name, tensor in batch.items()} for part in (slice(0, 1), slice(1, 4))]
    summed = evaluate_batch(model.model, parts[0], model.task) + evaluate_batch(model.model, parts[1], model.task)
    assert whole.records == summed.records == 3
    assert whole.counts == summed.counts
    assert whole.loss == pytest.approx(float(losses[[0, 1, 3]].sum()), rel=1e-5)
    assert whole.loss == pytest.approx(summed.loss, rel=1e-5)


def test_sums_count_correct_predictions():
    class Fixed(torch.nn.Module):
        def forward(self, logits):
            return type("Output", (), {"logits": logits})

    logits = torch.tensor([[2.0, 0.0], [2.0, 0.0], [0.0, 2.0], [0.0, 2.0]])
    found = evaluate_batch(
        Fixed(),
        {"logits": logits, "labels": torch.tensor([0, 1, 1, IGNORE_INDEX])},
        task_named("SequenceClassification", labels=2),
    )
    assert (found.records, found.counts) == (3, (2,))
    assert EvaluationSums(1.0, 2) + EvaluationSums(2.0, 3) == EvaluationSums(3.0, 5)
