"""The private part of a step in this process, without noise: from a shard to the sum on the integer grid.

It covers the draw, the micro-batches, the model, the gradients, the clipping and the rounding. The neighbour test uses
it: for two data sets D and D ∪ {x} the sums must differ by at most S in the L2 norm, exactly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch

from tensafe_api.tasks import TASKS
from tensorguard.data.rows import PixelRows, Rows, TokenRows
from tensorguard.data.shard import TEXT, Input, Pixels, Shard, Target, records_table, units_table
from tensorguard.models.batch_losses import LossFunction, record_loss
from tensorguard.models.images import load_image_recipe
from tensorguard.models.load import PRECISIONS, load_model
from tensorguard.models.lora import attach_lora, trainable_parameters
from tensorguard.models.output_head import find_output_head
from tensorguard.models.self_test import dummy_batches
from tensorguard.models.source import resolve_model
from tensorguard.models.tasks import task_named
from tensorguard.privacy.clipping import GridClipper
from tensorguard.privacy.gradients import PerExampleGradients
from tensorguard.privacy.sampling import PoissonSampler
from tensorguard.privacy.stream import SecretStream
from tensorguard.training.stop_signal import StopSignal
from tensorguard.training.unit_gradients import ShardGradients
from tests.support.trainer.image_jobs import make_image_model
from tests.support.trainer.rank_harness import make_causal_model, make_model, make_tag_model

LENGTH = 64
GRID = 1 << 16
CLIP = 0.05
"""Lower than the norms of most records, so that clipping is active."""
POISON = 43
"""A token whose embedding is so large that the gradient of a record with it is NaN."""
WORDS = 44
CPU = torch.device("cpu")

Record = tuple[Sequence[int], int]
"""Tokens (1 to LENGTH) and a label.

For CausalLM all tokens but the first are learned; for TokenClassification two of three tokens have a label. For
ImageClassification the tokens are repeated as the pixels of an image.
"""
Unit = Sequence[Record]


@dataclass
class Pipeline:
    """A model whose adapter is not zero, with its per-example gradients."""

    task: str
    model: torch.nn.Module
    gradients: PerExampleGradients
    rows: int
    form: Rows

    def sum(
        self, units: Sequence[Unit], order: Sequence[int] | None = None, clipper: GridClipper | None = None
    ) -> np.ndarray:
        """The grid sum of `units`, int64 [d], each drawn with q = 1. `order` changes their order in the batch.

        The secret stream is the same in each call, so a unit's dropout and rounding depend on its number only.
        """
        clipper = clipper or GridClipper(self.gradients.dimension, GRID, CLIP, CPU)
        shard = make_shard(units, self.task)
        drawn = PoissonSampler(len(shard), "1", SecretStream(bytes(32))).draw().tolist()
        gradients = ShardGradients(
            shard,
            self.model,
            self.gradients,
            SecretStream(bytes(32)),
            micro_batch_size=self.rows,
            form=self.form,
            device=CPU,
        )
        gradients.add_to(clipper, drawn if order is None else list(order), StopSignal())
        return clipper.take().numpy()


_MAKERS = {
    "SequenceClassification": make_model,
    "TokenClassification": make_tag_model,
    "CausalLM": make_causal_model,
    "ImageClassification": make_image_model,
}


@cache
def pipeline(
    task: str, precision: str = "fp32", dropout: float = 0.3, rows: int = 8, loss: LossFunction | None = None
) -> Pipeline:
    """A pipeline, created once for each combination of arguments. `loss` replaces the loss of the task."""
    torch.set_num_threads(1)
    with TemporaryDirectory() as directory:
        _MAKERS[task](Path(directory))
        source = resolve_model(directory, None)
        learned = task_named(task, labels=2 if TASKS[task].classes else 0)
        base = load_model(source, learned, init_seed=1, pad_token_id=0, precision=precision, device=CPU)
        form: Rows = TokenRows(LENGTH, 0, WORDS)
        if task == "ImageClassification":
            form = PixelRows(load_image_recipe(source), PRECISIONS[precision])
    targets = None if TASKS[task].classes else ["q_proj", "v_proj", "down_proj"]
    model = attach_lora(base, rank=2, alpha=4, dropout=dropout, init_seed=1, target_modules=targets)
    head = find_output_head(base.task, model, dummy_batches(base.task, form, rows=1, length=form.lengths[0])(0))
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        if isinstance(form, TokenRows):
            embeddings = base.model.get_input_embeddings().weight
            assert isinstance(embeddings, torch.Tensor)
            embeddings[POISON] = torch.finfo(embeddings.dtype).max
        for _, parameter in trainable_parameters(model):
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.2)
    gradients = PerExampleGradients(model, trainable_parameters(model), loss or record_loss(base.task, head))
    return Pipeline(task, model, gradients, rows, form)


def make_shard(units: Sequence[Unit], task: str) -> Shard:
    """A shard with `units` in this order: unit i has number i."""
    records = [record for unit in units for record in unit]
    starts = np.cumsum([0, *(len(unit) for unit in units)])[:-1].astype(np.int64)
    kind = task_named(task).target
    targets = [_target(kind, len(tokens), label) for tokens, label in records]
    stored: Input = Pixels(32, 32) if task == "ImageClassification" else TEXT
    inputs = [_image(tokens) if task == "ImageClassification" else list(tokens) for tokens, _ in records]
    table = records_table(inputs, targets, kind, stored)
    return Shard(units_table(table, starts, stored))


def _image(tokens: Sequence[int]) -> bytes:
    """The tokens, repeated, as 32 x 32 pixels."""
    return np.resize(np.array(tokens, dtype=np.uint8) * 5, 3 * 32 * 32).tobytes()


def _target(kind: Target, length: int, label: int) -> list[int] | int:
    """A target of this kind for a record of `length` tokens."""
    match kind:
        case Target.RECORD_LABEL:
            return label
        case Target.LEARNED_TOKENS:
            return [0] + [1] * (length - 1)
        case Target.TOKEN_LABELS:
            return [-100 if i % 3 == 2 else (label + i) % 2 for i in range(length)]


def squared_norm(difference: np.ndarray) -> int:
    """Σk² without overflow."""
    return sum(int(k) * int(k) for k in difference)
