"""Both sides of the accuracy benchmark add up the same clipped gradients, and add noise of the same size.

What is left of a difference between their accuracies is chance: draws and noise differ.
"""

from __future__ import annotations

import copy

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from benchmarks import minilm
from benchmarks.peers.opacus_trainer import Settings, cross_entropy, make_private
from tensorguard.models.lora import trainable_parameters
from tensorguard.privacy.clipping import GridClipper
from tensorguard.privacy.gradients import PerExampleGradients

pytestmark = pytest.mark.model

ROWS, MICRO_BATCH, GRID, CLIP = 150, 64, 2**21, 1.0


@pytest.fixture(scope="module")
def rows() -> TensorDataset:
    generator = torch.Generator().manual_seed(5)
    ids = torch.randint(1000, 20_000, (ROWS, 16), generator=generator)
    lengths = torch.randint(4, 17, (ROWS, 1), generator=generator)
    mask = (torch.arange(16) < lengths).long()
    return TensorDataset(ids * mask, mask, torch.randint(0, 2, (ROWS,), generator=generator))


def trained_model() -> torch.nn.Module:
    """The benchmark's model, moved away from its initial values, where half of all gradients are 0."""
    model = minilm.load_model(minilm.Adapter(), num_labels=2, seed=1)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.05)
    return model


def test_clipped_sums_of_tensafe_and_opacus_agree(rows: TensorDataset) -> None:
    ours = trained_model()
    theirs = copy.deepcopy(ours)
    parameters = trainable_parameters(ours)

    def losses(model: torch.nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        logits = model(input_ids=batch["ids"], attention_mask=batch["mask"]).logits
        return torch.nn.functional.cross_entropy(logits, batch["labels"], reduction="none")

    gradients = PerExampleGradients(ours, parameters, losses)
    clipper = GridClipper(gradients.dimension, GRID, CLIP, torch.device("cpu"), keep_norms=True)
    parts = list(DataLoader(rows, batch_size=MICRO_BATCH))
    for number, (ids, mask, labels) in enumerate(parts):
        found = gradients.compute({"ids": ids, "mask": mask, "labels": labels}, len(labels))
        clipper.add(list(found), [MICRO_BATCH * number + row + 1 for row in range(len(labels))])
    assert min(clipper.take_norms()) > CLIP, "every record is clipped"
    our_sum = clipper.take().double() / GRID * CLIP

    settings = Settings(noise_multiplier=1.5, sample_rate=0.1, steps=1, expected_batch=ROWS, learning_rate=0.02)
    _, optimizer, _ = make_private(theirs, settings, DataLoader(rows, batch_size=MICRO_BATCH))
    for number, (ids, mask, labels) in enumerate(parts, start=1):
        optimizer.signal_skip_step(do_skip=number < len(parts))
        cross_entropy(theirs(input_ids=ids, attention_mask=mask).logits, labels).backward()
        if number < len(parts):
            optimizer.step()
            optimizer.zero_grad()
    optimizer.clip_and_accumulate()
    named = dict(theirs.named_parameters())
    summed = [named[name].summed_grad.clone() for name, _ in parameters]
    their_sum = torch.cat([each.flatten() for each in summed]).double()
    assert float((our_sum - their_sum).norm()) < 1e-4 * float(their_sum.norm())

    optimizer.add_noise()
    noise = torch.cat([(named[name].grad - each).flatten() for (name, _), each in zip(parameters, summed, strict=True)])
    assert float(noise.std()) == pytest.approx(1.5 * CLIP, rel=0.03)
