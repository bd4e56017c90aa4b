"""No bit of a record's gradient depends on the other records of its batch, or on its slot.

The last tests remove one protection each, and the bits change: so the first tests can fail.
"""

import pytest
import torch

from tensorguard.models.batch_losses import forward_logits, record_loss
from tensorguard.models.load import checkpoint_activations
from tensorguard.models.losses import IGNORE_INDEX
from tensorguard.models.tasks import task_named

KINDS = ("bert", "bert-tags", "llama", "gpt2", "vit")
SEED = 41


def rows_of_one_record(trained, *, full):
    """One record's gradient in every slot, beside different records, with and without padding."""
    record = trained.batch(99)
    chosen = 0 if full else 1
    found = []
    for slot in range(len(record["labels"])):
        for padded in (True, False):
            batch = {name: tensor.clone() for name, tensor in trained.batch(10 * slot + padded).items()}
            if not padded and "attention_mask" in batch:
                batch["attention_mask"] = torch.ones_like(batch["attention_mask"])
            for name, tensor in record.items():
                batch[name][slot] = tensor[chosen]
            seeds = [1000 * slot + 2 * i + padded for i in range(len(record["labels"]))]
            seeds[slot] = SEED
            found.append(trained.rows(batch, seeds)[slot])
    return torch.stack(found)


def all_equal(rows):
    return all(torch.equal(rows[0], row) for row in rows[1:])


@pytest.mark.parametrize(
    "checkpointing", (pytest.param(False, id="kept"), pytest.param(True, id="recomputed", marks=pytest.mark.slow))
)
@pytest.mark.parametrize("dropout", (0.0, 0.25))
@pytest.mark.parametrize("precision", ("fp32", "bf16", "fp16"))
@pytest.mark.parametrize("kind", KINDS)
def test_no_bit_depends_on_slot_other_records_or_padding(trained, kind, precision, dropout, checkpointing):
    model = trained(kind, precision=precision, dropout=dropout, checkpointing=checkpointing)
    for full in (True, False):
        rows = rows_of_one_record(model, full=full)
        assert all_equal(rows)
        assert 1e-3 < float(rows[0].norm()) < 1e3


@pytest.mark.parametrize("kind", ("llama", "bert-tags"))
@pytest.mark.parametrize("neighbour", ("nan", "long", "empty"))
def test_hostile_record_changes_no_other_gradient(trained, neighbour, kind):
    model = trained(kind)
    calm, hostile = model.batch(3), {name: tensor.clone() for name, tensor in model.batch(3).items()}
    if neighbour == "empty":
        hostile["attention_mask"][1] = 0
        hostile["labels"][1] = IGNORE_INDEX
    elif neighbour == "long":
        hostile["attention_mask"][1] = 1
        hostile["input_ids"][1] = 96
    with torch.no_grad():
        embedding = model.model.get_input_embeddings().weight
        embedding[96] = float("nan") if neighbour == "nan" else 1e4
        hostile["input_ids"][1] = 96 if neighbour == "nan" else hostile["input_ids"][1]
        for batch in (calm, hostile):
            batch["input_ids"][[0, 2, 3]] %= 96
    assert torch.equal(model.rows(calm)[[0, 2, 3]], model.rows(hostile)[[0, 2, 3]])


def test_image_of_extreme_levels_changes_no_other_gradient(trained):
    model = trained("vit", precision="bf16", dropout=0.25)
    batch = model.batch(3)
    rows = model.rows(batch)[[0, 2, 3]]
    for value in (-1.0, 1.0, 1e30, float("nan")):
        batch["pixel_values"][1] = value
        assert torch.equal(model.rows(batch)[[0, 2, 3]], rows)


def test_mutation_normalising_by_the_mean_of_the_batch_couples_records(trained):
    def centred(model, batch):
        pixels = batch["pixel_values"]
        return record_loss(task_named("ImageClassification", labels=3))(
            model, {**batch, "pixel_values": pixels - pixels.mean(dim=0)}
        )

    assert not all_equal(rows_of_one_record(trained("vit", loss=centred), full=True))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("checkpointing", (False, True), ids=("kept", "recomputed"))
def test_rows_equal_an_ordinary_backward_pass_of_each_record(trained, kind, checkpointing):
    model = trained(kind, checkpointing=checkpointing)
    batch = model.batch(2)
    together = model.rows(batch)
    for i, row in enumerate(together):
        alone = model.gradients.summed_gradient({name: tensor[i : i + 1] for name, tensor in batch.items()})
        torch.testing.assert_close(row, alone, rtol=1e-4, atol=1e-6)


def test_activation_checkpointing_changes_no_gradient(trained):
    kept = trained("llama", dropout=0.25)
    rows = kept.rows(kept.batch(1))
    again = trained("llama", dropout=0.25, checkpointing=True)
    assert torch.equal(rows, again.rows(again.batch(1)))


def test_activation_checkpointing_can_be_enabled_after_the_adapter(trained):
    kept = trained("llama", modules_to_save=["norm"])
    rows = kept.rows(kept.batch(1))
    checkpoint_activations(kept.model.get_base_model())
    assert kept.model.get_base_model().is_activation_checkpointing
    assert torch.equal(rows, kept.rows(kept.batch(1)))


def test_mutation_mean_over_the_tokens_of_the_batch_couples_records(trained):
    def token_mean(model, batch):
        logits, labels = forward_logits(model, batch)[:, :-1].float(), batch["labels"][:, 1:]
        losses = torch.nn.functional.cross_entropy(logits.transpose(1, 2), labels, reduction="none")
        return losses.sum(dim=1) / (labels != IGNORE_INDEX).sum()

    assert not all_equal(rows_of_one_record(trained("llama", loss=token_mean), full=True))


def test_mutation_seeded_dropout_over_the_batch_couples_records(trained):
    model = trained("llama", dropout=0.25)
    for module in model.model.modules():
        if hasattr(module, "lora_dropout"):
            module.lora_dropout["default"] = torch.nn.Dropout(0.25)

    def seeded_rows(batch, seeds=None):
        torch.manual_seed(0)
        return type(model).rows(model, batch, seeds)

    model.rows = seeded_rows
    rows = rows_of_one_record(model, full=True)
    assert torch.equal(rows[0], rows[1])
    assert not all_equal(rows)


def test_mutation_dropped_mask_couples_records_in_bf16(trained):
    model = trained("llama", precision="bf16")
    model.model.get_base_model().set_attn_implementation("sdpa")
    assert not all_equal(rows_of_one_record(model, full=True))
