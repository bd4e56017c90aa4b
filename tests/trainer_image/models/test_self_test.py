"""The self-test passes for good models, and finds every fault that it tests for."""

import pytest
import torch
from torch import nn
from transformers import OPTConfig, OPTForCausalLM, XLNetConfig, XLNetForSequenceClassification

from tensorguard.data.rows import TokenRows
from tensorguard.models.batch_losses import forward_logits, record_loss
from tensorguard.models.load import prepare_base
from tensorguard.models.lora import attach_lora, trainable_parameters
from tensorguard.models.losses import classification_losses
from tensorguard.models.self_test import SelfTestError, dummy_batches, self_test
from tensorguard.models.tasks import task_named
from tensorguard.privacy.clipping import GridClipper
from tensorguard.privacy.gradients import PerExampleGradients


@pytest.mark.parametrize("precision", ("fp32", "bf16", "fp16"))
@pytest.mark.parametrize("kind", ("bert", "llama", "gpt2"))
def test_good_models_pass_bit_equal_and_are_not_changed(trained, kind, precision):
    model = trained(kind, precision=precision, dropout=0.1, loss_scale=128.0 if precision == "fp16" else 1.0)
    before = [parameter.detach().clone() for _, parameter in model.gradients.parameters]
    report = model.self_test()
    assert report.bit_equal and report.sum_error < 1e-5
    assert all(torch.equal(old, new) for old, (_, new) in zip(before, model.gradients.parameters, strict=True))


def test_passes_with_recomputed_activations_and_modules_trained_in_full(trained):
    model = trained("llama", precision="bf16", checkpointing=True, modules_to_save=["norm", "lm_head"])
    assert model.self_test().bit_equal


def test_finds_and_names_a_remaining_dropout(trained):
    model = trained("bert")
    model.model.get_submodule("base_model.model.bert.encoder.layer.1.output").dropout = nn.Dropout(0.1)
    with pytest.raises(SelfTestError, match=r"layer\.1\.output\.dropout' gives another result"):
        model.self_test()


def grouped(model, batch):
    """A loss over groups of equal tokens. Each record has as many groups as the record with most of them needs."""
    most = max(len(tokens.unique()) for tokens in batch["input_ids"])
    states = torch.zeros(len(batch["labels"]), most, 32)
    module = model.get_submodule("base_model.model.bert.encoder.layer.1.attention.self.value.lora_A.default")
    return classification_losses(forward_logits(model, batch), batch["labels"]) + 0 * module(states).sum(dim=(1, 2))


def test_finds_and_names_shapes_that_depend_on_values(trained):
    """The groups of this model change no bit, so that nothing else can find them."""
    model = trained("bert", loss=grouped)
    with pytest.raises(SelfTestError, match=r"value\.lora_A\.default' depends on .*microBatchSize to 1"):
        model.self_test()


def test_shapes_that_depend_on_values_do_no_harm_to_a_record_alone(trained):
    task, form = task_named("SequenceClassification", labels=2), TokenRows(16, 0, 90)
    assert trained("bert", loss=grouped).self_test(dummy_batches(task, form, rows=1, length=16)).bit_equal


WRONG = "base_model.model.bert.encoder.layer.1.attention.self.value.lora_B.default"


def test_finds_and_names_a_wrong_gradient_of_a_linear_layer(trained, monkeypatch):
    take = PerExampleGradients._take_linear

    def doubled(gradients, name, layer, inputs, outputs):
        take(gradients, name, layer, inputs, outputs * 2 if name == WRONG else outputs)

    monkeypatch.setattr(PerExampleGradients, "_take_linear", doubled)
    with pytest.raises(SelfTestError, match=rf"{WRONG}\.weight' add up"):
        trained("bert").self_test()


def test_finds_and_names_a_wrong_gradient_of_opacus(trained):
    """Opacus' hooks are used for a layer whose forward pass another library has changed."""
    model = trained("bert")
    model.gradients.close()
    part = model.model.get_submodule(WRONG)
    part.forward = lambda x: nn.functional.linear(2 * x, part.weight)
    model.gradients = PerExampleGradients(model.model, trainable_parameters(model.model), record_loss(model.task))
    with pytest.raises(SelfTestError, match=rf"{WRONG}\.weight' add up"):
        model.self_test()


def test_finds_rounding_that_depends_on_the_slot(trained):
    def rounded(model, batch):
        losses = classification_losses(forward_logits(model, batch), batch["labels"])
        return losses * (1 + 1e-6 * torch.arange(len(losses)))

    assert 1e-7 < trained("bert", loss=rounded).self_test().neighbour_error < 1e-5


def test_finds_integers_that_depend_on_the_slot_although_gradients_do_not(trained, monkeypatch):
    to_grid = GridClipper.to_grid

    def shifted(clipper, rows, seeds):
        integers = to_grid(clipper, rows, seeds)
        integers[1:, 0] += 1
        return integers

    monkeypatch.setattr(GridClipper, "to_grid", shifted)
    assert not trained("bert").self_test().bit_equal


@pytest.mark.parametrize(
    "felt",
    [
        lambda size: size.mean(),
        lambda size: size.roll(1),
        lambda size: size[0],
        lambda size: size[[1, 0, *range(2, 4)]],
    ],
    ids=["all", "previous record", "first record", "tested records"],
)
def test_finds_coupled_records(trained, felt):
    def coupled(model, batch):
        logits = forward_logits(model, batch)
        return classification_losses(logits, batch["labels"]) * (1 + felt(logits.detach().abs().mean(dim=1)))

    model = trained("bert", loss=coupled)
    with pytest.raises(SelfTestError, match="couples the records"):
        model.self_test()


@pytest.mark.parametrize("factor", [1.5, float("nan")])  # NaN is neither above a limit nor below it
@pytest.mark.parametrize("rows", [2, 4])
def test_finds_a_gradient_that_changes_only_beside_other_records(trained, rows, factor):
    make = dummy_batches(task_named("SequenceClassification", labels=2), TokenRows(16, 0, 90), rows=rows, length=16)
    known = {tuple(row) for row in make(0)["input_ids"].tolist()}

    def coupled(model, batch):
        alone = {tuple(row) for row in batch["input_ids"].tolist()} <= known
        return classification_losses(forward_logits(model, batch), batch["labels"]) * (1.0 if alone else factor)

    model = trained("bert", loss=coupled)
    with pytest.raises(SelfTestError, match="couples the records"):
        model.self_test(make)


@pytest.mark.parametrize("kind", ["bert", "bert-tags"])
def test_finds_a_loss_that_is_normalised_over_the_batch(trained, kind):
    """The number of records (or words) that have a label differs between batches: some rows are dummies."""
    task = trained(kind).task

    def batch_mean(model, batch):
        losses = task.losses(forward_logits(model, batch), batch["labels"])
        return losses / task.learns(batch["labels"]).sum()

    model = trained(kind, loss=batch_mean)
    with pytest.raises(SelfTestError, match="couples the records"):
        model.self_test()


def measure(model, gradients, make_batch):
    return self_test(model, gradients, GridClipper(gradients.dimension, 1 << 18, 1.0, torch.device("cpu")), make_batch)


def test_finds_a_model_whose_layers_receive_rows_that_are_not_records():
    """OPT flattens records and tokens before its linear layers, so gradients cannot be separated by record."""
    config = OPTConfig(
        vocab_size=97, hidden_size=32, word_embed_proj_dim=32, ffn_dim=64, num_hidden_layers=1, num_attention_heads=2
    )
    base = prepare_base(OPTForCausalLM(config), task_named("CausalLM"), pad_token_id=0)
    model = attach_lora(base, rank=2, alpha=4, dropout=0.0, init_seed=7, target_modules=["fc1"])
    gradients = PerExampleGradients(model, trainable_parameters(model), record_loss(task_named("CausalLM")))
    with pytest.raises(SelfTestError, match=r"fc1\.lora_B\.default' sees \[64\] rows in a batch of 4 records"):
        measure(model, gradients, dummy_batches(task_named("CausalLM"), TokenRows(16, 0, 97), rows=4, length=16))


def test_finds_a_model_whose_first_dimension_is_the_sequence():
    """XLNet computes [L, m]. If L equals m, no shape shows it."""
    config = XLNetConfig(vocab_size=97, d_model=32, n_layer=1, n_head=2, d_inner=64, num_labels=2)
    task = task_named("SequenceClassification", labels=2)
    base = prepare_base(XLNetForSequenceClassification(config), task, pad_token_id=0)
    model = attach_lora(base, rank=2, alpha=4, dropout=0.0, init_seed=7, target_modules=["layer_1", "layer_2"])
    gradients = PerExampleGradients(model, trainable_parameters(model), record_loss(task))
    with pytest.raises(SelfTestError, match="couples the records"):
        measure(
            model,
            gradients,
            dummy_batches(task_named("SequenceClassification", labels=2), TokenRows(8, 0, 97), rows=8, length=8),
        )
    with pytest.raises(SelfTestError, match="cannot be separated by record"):
        measure(
            model,
            gradients,
            dummy_batches(task_named("SequenceClassification", labels=2), TokenRows(8, 0, 97), rows=4, length=8),
        )
