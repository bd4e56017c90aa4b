"""The self test passes on good models, and finds each fault that it is there for."""

import pytest
import torch
from torch import nn

from tensorguard.models.checks import SelfTest, SelfTestFailed, self_test, settle_threads
from tensorguard.models.losses import classification_losses, forward_logits


@pytest.mark.parametrize("precision", ("fp32", "bf16", "fp16"))
@pytest.mark.parametrize("kind", ("bert", "llama", "gpt2"))
def test_good_models_pass_to_the_bit_and_stay_as_they_were(trained, kind, precision):
    model = trained(kind, precision=precision, dropout=0.1, loss_scale=128.0 if precision == "fp16" else 1.0)
    before = [parameter.detach().clone() for _, parameter in model.gradients.parameters]
    report = self_test(model.model, model.gradients, model.batch)
    assert report.bit_equal and report.sum_error < 1e-5
    assert all(torch.equal(old, new) for old, (_, new) in zip(before, model.gradients.parameters, strict=True))


def test_passes_with_recomputed_activations_and_modules_trained_whole(trained):
    model = trained("llama", precision="bf16", checkpointing=True, modules_to_save=["model.norm", "lm_head"])
    assert self_test(model.model, model.gradients, model.batch).bit_equal


def test_finds_a_leftover_dropout_and_names_it(trained):
    model = trained("bert")
    model.model.get_submodule("base_model.model.bert.encoder.layer.1.output").dropout = nn.Dropout(0.1)
    with pytest.raises(SelfTestFailed, match=r"layer\.1\.output\.dropout' gives another result"):
        self_test(model.model, model.gradients, model.batch)


def test_finds_a_gradient_that_opacus_gets_wrong_and_names_it(trained):
    model = trained("bert")
    part = model.model.get_submodule("base_model.model.bert.encoder.layer.1.attention.self.value.lora_B.default")
    part.forward = lambda x: nn.functional.linear(2 * x, part.weight)
    with pytest.raises(SelfTestFailed, match=r"layer\.1\.attention\.self\.value\.lora_B\.default\.weight' add up"):
        self_test(model.model, model.gradients, model.batch)


def test_finds_records_that_are_coupled(trained):
    def coupled(model, batch):
        logits = forward_logits(model, batch)
        return classification_losses(logits, batch["labels"]) * (1 + 0.01 * logits.detach().square().mean())

    model = trained("bert", loss=coupled)
    with pytest.raises(SelfTestFailed, match="couples the records"):
        self_test(model.model, model.gradients, model.batch)


def test_fewer_threads_are_tried_until_the_bits_agree(one_thread):
    tried = []

    def report():
        tried.append(torch.get_num_threads())
        return SelfTest(0.0, 1e-7 if torch.get_num_threads() > 2 else 0.0)

    try:
        torch.set_num_threads(6)
        assert settle_threads(report).bit_equal
        assert tried == [6, 4, 2] and torch.get_num_threads() == 2
        torch.set_num_threads(3)
        assert not settle_threads(lambda: SelfTest(0.0, 1e-7)).bit_equal
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(1)
