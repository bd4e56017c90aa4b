"""The loss in chunks of tokens gives the losses and gradients of the whole logits, and couples no records."""

from collections.abc import Iterator

import pytest
import torch
from torch.nn import functional
from transformers import Gemma2Config, Gemma2ForCausalLM

from tensorguard.models import output_head
from tensorguard.models.batch_losses import evaluate_batch
from tensorguard.models.losses import IGNORE_INDEX, causal_lm_losses
from tensorguard.models.output_head import OutputHead, find_output_head
from tensorguard.models.tasks.causal_lm import CausalLM

from .conftest import MAKERS, WORDS

CAUSAL = CausalLM()


@pytest.fixture
def chunk_sizes(monkeypatch) -> Iterator[list[int]]:
    """Chunks of four tokens; yields the number of logits of each chunk."""
    monkeypatch.setattr(output_head, "CHUNK_SCORES", 5 * WORDS)
    seen: list[int] = []
    linear = functional.linear

    def recorded(hidden, weight, bias=None):
        scores = linear(hidden, weight, bias)
        if weight.shape[0] == WORDS:
            seen.append(scores.numel())
        return scores

    monkeypatch.setattr(functional, "linear", recorded)
    yield seen


def chunked(trained, kind):
    """The same model twice: with the loss from the whole logits, and in chunks."""
    whole = trained(kind)
    head = find_output_head(whole.task, whole.model, whole.batch(0))
    assert head is not None
    parts = trained(kind, loss=lambda model, batch: OutputHead(model.get_output_embeddings()).losses(model, batch))
    return whole, parts, head


@pytest.mark.parametrize("kind", ("llama", "gpt2"))
def test_losses_and_gradients_are_those_of_the_whole_logits(trained, kind, chunk_sizes):
    whole, parts, head = chunked(trained, kind)
    batch = whole.batch(3)
    batch["labels"][0, 4:9] = IGNORE_INDEX
    chunk_sizes.clear()
    found = head.losses(whole.model, batch)
    assert max(chunk_sizes) == 4 * WORDS
    torch.testing.assert_close(found, whole.gradients.losses(batch), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(parts.rows(batch), whole.rows(batch), rtol=1e-4, atol=1e-6)


def test_one_chunk_may_hold_a_whole_record(trained):
    whole, parts, _ = chunked(trained, "llama")
    torch.testing.assert_close(parts.rows(whole.batch(3)), whole.rows(whole.batch(3)), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("bias", (False, True))
def test_gradient_agrees_with_finite_differences(chunk_sizes, bias):
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(3, 7, 5, generator=generator, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(WORDS, 5, generator=generator, dtype=torch.float64)
    added = torch.randn(WORDS, generator=generator, dtype=torch.float64) if bias else None
    labels = torch.randint(WORDS, (3, 6), generator=generator)
    labels[0, 2:5] = IGNORE_INDEX
    labels[1] = IGNORE_INDEX
    apply = output_head._ChunkedTokenLoss.apply
    assert torch.autograd.gradcheck(lambda x: apply(x, weight, added, labels), hidden)
    shifted = functional.pad(labels, (1, 0), value=IGNORE_INDEX)
    expected = causal_lm_losses(functional.linear(hidden, weight, added), shifted)
    torch.testing.assert_close(apply(hidden, weight, added, labels), expected)
    assert expected[1] == apply(hidden, weight, added, labels)[1] == 0


@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.float16))
def test_half_precision_keeps_the_slopes_of_long_records(dtype):
    """Each token of a long record has a small weight. Its slope times the weight would be 0 in fp16."""
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(1, 400, 8, generator=generator)
    weight = torch.randn(3_000, 8, generator=generator) / 100
    labels = torch.randint(3_000, (1, 399), generator=generator)

    def slopes(kind):
        own = hidden.to(kind).detach().clone().requires_grad_()
        losses = output_head._ChunkedTokenLoss.apply(own, weight.to(kind), None, labels)
        assert losses.dtype == torch.float32
        (losses * 256).sum().backward()
        return own.grad.float()

    exact = slopes(torch.float32)
    assert float((slopes(dtype) - exact).norm() / exact.norm()) < 0.02


@pytest.mark.parametrize("kind", ("llama", "gpt2"))
def test_no_bit_of_a_row_depends_on_slot_or_other_records(trained, kind, chunk_sizes):
    _, parts, _ = chunked(trained, kind)
    assert parts.self_test().bit_equal


def test_record_with_nan_changes_no_other_gradient(chunk_sizes):
    generator = torch.Generator().manual_seed(0)
    hidden, weight = torch.randn(3, 7, 5, generator=generator), torch.randn(WORDS, 5, generator=generator)
    labels = torch.randint(WORDS, (3, 6), generator=generator)

    def slopes(hidden, labels):
        own = hidden.clone().requires_grad_()
        output_head._ChunkedTokenLoss.apply(own, weight, None, labels).sum().backward()
        return own.grad

    other, others_labels = hidden.clone(), labels.clone()
    other[1], others_labels[1, 2:] = torch.nan, IGNORE_INDEX
    assert torch.equal(slopes(other, others_labels)[[0, 2]], slopes(hidden, labels)[[0, 2]])
    others_labels[1] = IGNORE_INDEX
    assert not slopes(other, others_labels)[1].any()


def test_evaluation_gives_the_same_sums(trained, chunk_sizes):
    whole, _, head = chunked(trained, "llama")
    batch = whole.batch(1)
    batch["labels"][2] = IGNORE_INDEX
    whole.model.eval()
    logits, chunks = (evaluate_batch(whole.model, batch, CAUSAL, each) for each in (None, head))
    assert chunks.records == logits.records == 3 and chunks.counts == logits.counts
    assert chunks.loss == pytest.approx(logits.loss, rel=1e-6)


@pytest.mark.parametrize("precision", ("fp32", "bf16"))
@pytest.mark.parametrize("cap", (5.0, 1024.0))
def test_model_that_caps_its_logits_is_computed_whole(trained, monkeypatch, cap, precision):
    """A high cap changes no small logits, in bf16 not by a single bit."""

    def capped():
        size = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
        size |= {"vocab_size": WORDS, "head_dim": 8, "num_key_value_heads": 2, "max_position_embeddings": 16}
        return Gemma2ForCausalLM(Gemma2Config(final_logit_softcapping=cap, pad_token_id=0, **size))

    monkeypatch.setitem(MAKERS, "gemma", (capped, "CausalLM", ["q_proj"]))
    model = trained("gemma", precision=precision)
    assert find_output_head(CAUSAL, model.model, model.batch(0)) is None


def with_changed_output(monkeypatch, model, change):
    """Let `change` receive and return the output of the base model."""
    base = model.model.get_base_model()
    forward = base.forward
    monkeypatch.setattr(base, "forward", lambda *args, **kwargs: change(base, forward(*args, **kwargs)))
    return model


def test_model_that_changes_its_logits_in_training_only_is_computed_whole(trained, monkeypatch):
    def changed(base, output):
        output.logits = output.logits.tanh() if base.training else output.logits
        return output

    model = with_changed_output(monkeypatch, trained("llama"), changed)
    assert find_output_head(CAUSAL, model.model, model.batch(0)) is None


def test_model_that_returns_fp32_logits_from_a_bf16_layer_keeps_its_chunks(trained, monkeypatch):
    def raised(_base, output):
        output.logits = output.logits.float()
        return output

    model = with_changed_output(monkeypatch, trained("llama", precision="bf16"), raised)
    head = find_output_head(CAUSAL, model.model, model.batch(0))
    assert head is not None
    assert head.losses(model.model, model.batch(0)).isfinite().all()


def test_model_that_needs_its_logits_for_something_else_is_computed_whole(trained, monkeypatch):
    def indexed(_base, output):
        output.logits[..., WORDS - 1].sum()
        return output

    model = with_changed_output(monkeypatch, trained("llama"), indexed)
    assert find_output_head(CAUSAL, model.model, model.batch(0)) is None
    assert "forward" not in vars(model.model.get_output_embeddings())


def test_last_token_of_a_chunk_is_computed_alike_at_every_address(monkeypatch):
    monkeypatch.setattr(output_head, "CHUNK_SCORES", 8 * WORDS)
    for seed in range(40):
        generator = torch.Generator().manual_seed(seed)
        row, weight = torch.randn(1, 10, 33, generator=generator), torch.randn(WORDS, 33, generator=generator)
        labels = torch.randint(WORDS, (1, 9), generator=generator).expand(2, -1)
        hidden = row.repeat(2, 1, 1).requires_grad_()
        output_head._ChunkedTokenLoss.apply(hidden, weight, None, labels).sum().backward()
        assert torch.equal(hidden.grad[0], hidden.grad[1])


def test_output_layer_that_is_trained_is_computed_whole(trained):
    model = trained("llama", modules_to_save=["lm_head"])
    assert find_output_head(CAUSAL, model.model, model.batch(0)) is None
    adapted = trained("llama", target_modules=["q_proj", "lm_head"])
    assert find_output_head(CAUSAL, adapted.model, adapted.batch(0)) is None


def test_classifier_has_no_vocabulary_head(trained):
    model = trained("bert")
    assert find_output_head(model.task, model.model, model.batch(0)) is None


def test_task_with_a_loss_or_a_metric_of_its_own_is_computed_whole(trained):
    class Doubled(CausalLM):
        def losses(self, logits, labels):
            return 2 * super().losses(logits, labels)

    class Measured(CausalLM):
        def counts(self, logits, labels):
            return (int(logits.argmax(dim=-1).sum()),)

    model = trained("llama")
    for kind in (Doubled, Measured):
        assert find_output_head(kind(), model.model, model.batch(0)) is None


def test_dropout_of_the_adapter_is_no_reason_for_whole_logits(trained):
    model = trained("llama", dropout=0.5)
    assert find_output_head(CAUSAL, model.model, model.batch(0)) is not None
    assert model.model.training


def test_error_in_a_pass_leaves_the_output_layer_as_it_was(trained):
    whole, _, head = chunked(trained, "llama")
    with pytest.raises(IndexError):
        head.hidden_states(whole.model, {"input_ids": torch.tensor([[WORDS + 1]])})
    assert "forward" not in vars(head.layer)
