"""Estimates the memory that a worker needs for a job, without the model's weights and without its memory.

In: a job, and the files of its model (config and tokenizer). Out: a `MemoryEstimate` in bytes, for a micro-batch of any
size. `tensafe plan` shows it.

What autograd keeps of a pass depends on the model's code, so no formula for it would fit any model. Here one pass of
the real code (the model, its adapter, the hooks for per-example gradients, the loss) runs on tensors without numbers,
and `allocations` counts them. The rest has simple sizes: the weights, and so many numbers for each trained parameter
and each record.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import Literal

import torch
from peft import PeftModel

from tensafe_api.resources.job import Spec
from tensorguard.data.recipe import Recipe
from tensorguard.data.rows import TokenRows
from tensorguard.models.allocations import Allocations, FollowsOnly, FusedAttention
from tensorguard.models.batch_losses import forward_logits, record_loss
from tensorguard.models.dropout import record_seeds
from tensorguard.models.frozen_prefix import find_frozen_prefix
from tensorguard.models.load import checkpoint_activations, load_without_weights
from tensorguard.models.lora import adapter_parameters, attach_lora_of, trainable_parameters
from tensorguard.models.output_head import OutputHead, frozen_output_layer, replaced
from tensorguard.models.positions import check_length
from tensorguard.models.quantized import QuantizedLinear
from tensorguard.models.self_test import dummy_batches
from tensorguard.models.sharded_base import layers_of
from tensorguard.models.source import ModelSource
from tensorguard.models.tasks import Task, task_of
from tensorguard.models.unsupported import UnsupportedModelError
from tensorguard.privacy.clipping import rows_at_once
from tensorguard.privacy.gradients import Batch, PerExampleGradients

Device = Literal["cpu", "cuda"]


@dataclass(frozen=True)
class MemoryEstimate:
    """The memory of one worker in bytes, on the device that computes, at its peak.

    Not all parts are largest at the same time: the peak is in a pass, while gradients are clipped, or in the update.

    Attributes:
        weights: the frozen weights of the base model, or this worker's part of them.
        gathered_layers: what a pass holds whole of weights that are stored sharded.
        adapter: the trained parameters and the two moments of AdamW, fp32.
        rows: the gradient of each record of a micro-batch, fp32.
        sum: the sum of the clipped gradients, int64. On a CPU also noise and masks; a worker with a GPU has these in
            its host's memory.
        passes: activations, loss and gradients of a forward and backward pass, with what is kept of the micro-batch
            before it.
        clipping: what is needed to add up the records of a unit, and to clip and round it.
        update: what is needed to decode the sum and to change the parameters.
        host: what a worker with a GPU needs of its host's memory: the weights while they are loaded, or what the
            update needs there. 0 on a CPU, where the other parts are in this memory.
        micro_batch: the number of records at once.
        dimension: the number of trained parameters.
    """

    weights: int
    gathered_layers: int
    adapter: int
    rows: int
    sum: int
    passes: int
    clipping: int
    update: int
    host: int
    micro_batch: int
    dimension: int

    @property
    def total(self) -> int:
        """The peak, without what the process and CUDA take for themselves."""
        always = self.weights + self.adapter + self.rows + self.sum
        return always + max(self.gathered_layers + self.passes, self.clipping, self.update)


@dataclass(frozen=True)
class LeftOut:
    """What a worker leaves out of its steps, because it is frozen (`frozen_prefix`).

    Attributes:
        what: such as "4 of 6 layers".
        record_bytes: the size of the states of one record of the greatest length.
    """

    what: str
    record_bytes: int


class MemoryModel:
    """The model of a job on the device `meta`, whose memory can be estimated for any micro-batch."""

    def __init__(self, spec: Spec, source: ModelSource, device: Device, precision: str) -> None:
        """Build the model from its config.

        Args:
            device: the kind of device that the worker computes on.
            precision: of the base weights, a key of `load.PRECISIONS`.

        Raises:
            UnsupportedModelError: as when the job starts, or if the model needs numbers in its forward pass.
            ValueError: a field of the manifest does not fit the model.
        """
        self._device = device
        self._shards, self._workers = spec.ranks_per_base, spec.cluster.workers
        self._task = task_of(spec)
        processor = self._task.load_processor(source, spec.model)
        base = load_without_weights(
            source,
            self._task,
            pad_token_id=self._task.pad_id(processor),
            precision=precision,
            trust_remote_code=spec.model.trust_remote_code,
            quantization=spec.model.quantization,
            modules_to_save=spec.lora.modules_to_save,
        )
        with torch.device("meta"):
            self._model = attach_lora_of(spec.lora, base)
        if spec.training.gradient_checkpointing:
            checkpoint_activations(base.model)
        self._form = self._task.rows(processor, Recipe.from_spec(spec), self._model)
        if isinstance(self._form, TokenRows):
            check_length(self._model, source.name, self._form.max_length)
        self._head = _output_head(self._task, self._model, self._batch(1, min(self._form.lengths)))

    def estimate(self, micro_batch: int) -> MemoryEstimate:
        """The memory for `micro_batch` records at once, each of the greatest length.

        Raises:
            UnsupportedModelError: the model needs numbers in its forward pass, so that its memory cannot be estimated.
        """
        dimension = sum(parameter.numel() for _, parameter in trainable_parameters(self._model))
        batch = self._batch(micro_batch, max(self._form.lengths))
        inputs = sum(tensor.nbytes for tensor in batch.values())
        peak = self._pass(batch)
        row = 4 * dimension
        rows = micro_batch * row
        block = min(micro_batch, rows_at_once(dimension, torch.device(self._device))) * row
        on_cpu = self._device == "cpu"
        # The self-test keeps another micro-batch, a copy of the parameters, and two to four rows: the records that it
        # tries, alone and among others. It has neither noise nor masks nor the two moments of AdamW yet.
        tested = min(micro_batch, 3)
        return MemoryEstimate(
            weights=sum(_stored_bytes(self._model, self._shards).values()),
            gathered_layers=_gathered_bytes(self._model, self._shards),
            adapter=3 * row,
            rows=rows,
            # The sum is int64. On a CPU follow the noise of the next step (int64) and its masks (uint32).
            sum=2 * row + (3 * row if on_cpu else 0),
            passes=peak - rows + inputs + tested * row,
            # The clipper copies a block of rows and needs five numbers of 32 bits for each coordinate of it. A step
            # keeps two rows of open units, and the self-test a row on the grid, int64.
            clipping=(2 if on_cpu else 2 + tested) * row + 6 * block,
            # On a CPU, the sum over several workers with its verification takes more than one worker's own sum.
            update=(5 if not on_cpu else 8 if self._workers == 1 else 11) * row,
            host=0 if on_cpu else max(_loaded_bytes(self._model, self._shards), 14 * row),
            micro_batch=micro_batch,
            dimension=dimension,
        )

    def left_out(self) -> LeftOut | None:
        """What a worker computes once for each record, if it may; None where that is nothing."""
        inputs = {name: each for name, each in self._batch(1, max(self._form.lengths)).items() if name != "labels"}
        prefix = find_frozen_prefix(self._model, inputs)
        if prefix is None:
            return None
        states = prefix.compute(inputs)
        prefix.close()
        return LeftOut(prefix.left_out, states.nbytes)

    def _pass(self, batch: Batch) -> int:
        """The peak of one forward and backward pass in bytes, without the weights and with the rows of gradients."""
        micro_batch = len(batch["labels"])
        allocations = Allocations([*self._model.parameters(), *self._model.buffers()])
        for tensor in batch.values():
            allocations.count(tensor)
        gradients = PerExampleGradients(
            self._model, trainable_parameters(self._model), record_loss(self._task, self._head)
        )
        try:
            with record_seeds(self._model, [0] * micro_batch), allocations, FusedAttention(self._device):
                gradients.compute(batch, micro_batch)
        except (NotImplementedError, RuntimeError) as error:
            raise _needs_numbers(error) from error
        finally:
            gradients.close()
        return allocations.peak

    def _batch(self, micro_batch: int, length: int) -> Batch:
        return dummy_batches(self._task, self._form, rows=micro_batch, length=length, device="meta")(0)


def _needs_numbers(error: Exception) -> UnsupportedModelError:
    reason = str(error).strip().splitlines()[0].rstrip(".")
    return UnsupportedModelError(
        f"spec.model.name: the memory of this model cannot be estimated without its weights ({reason}): run a step."
    )


def _output_head(task: Task, model: PeftModel, batch: Batch) -> OutputHead | None:
    """As `find_output_head`, which compares numbers: here nothing that changes them may follow the output layer."""
    layer = frozen_output_layer(task, model)
    if layer is None:
        return None
    after = FollowsOnly()

    def output(hidden: torch.Tensor) -> torch.Tensor:
        return after.follow(hidden.new_empty(*hidden.shape[:-1], layer.out_features))

    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="None of the inputs have requires_grad")  # of checkpointed layers
            with torch.no_grad(), record_seeds(model, [0] * len(batch["labels"])), replaced(layer, output), after:
                logits = forward_logits(model, batch)
    except (NotImplementedError, RuntimeError) as error:
        raise _needs_numbers(error) from error
    return OutputHead(layer) if after.unchanged and after.follows(logits) else None


def _stored_bytes(model: PeftModel, shards: int) -> dict[int, int]:
    """The bytes that a worker stores of each frozen parameter and of each buffer, by the tensor's id."""
    kept = adapter_parameters(model)
    frozen = [parameter for parameter in model.parameters() if not parameter.requires_grad]
    found = {id(each): each.nbytes if each in kept else math.ceil(each.nbytes / shards) for each in frozen}
    return found | {id(buffer): buffer.nbytes for buffer in model.buffers()}


def _loaded_bytes(model: PeftModel, shards: int) -> int:
    """The bytes of frozen weights in a host's memory while one rank loads them.

    A rank reads its own part of a sharded base. A base is quantised after it was loaded as a whole.
    """
    quantised = [module for module in model.modules() if isinstance(module, QuantizedLinear)]
    if shards > 1 and not quantised:
        return sum(_stored_bytes(model, shards).values())
    before = sum(layer.out_features * layer.in_features * layer.dtype.itemsize for layer in quantised)
    after = sum(layer.codes.nbytes + layer.scales.nbytes for layer in quantised)
    return sum(_stored_bytes(model, 1).values()) + before - after


def _gathered_bytes(model: PeftModel, shards: int) -> int:
    """The weights that a pass holds in addition to those that are stored.

    Of a sharded model, the layer that computes and the next one are whole. What is outside the layers, such as
    embeddings and the output layer, stays whole from the forward to the backward pass.
    """
    if shards == 1:
        return 0
    kept = adapter_parameters(model)
    sizes = {id(each): each.nbytes for each in model.parameters() if not each.requires_grad and each not in kept}
    layers = [sum(sizes.get(id(each), 0) for each in layer.parameters()) for layer in layers_of(model)]
    return 2 * max(layers, default=0) + sum(sizes.values()) - sum(layers)
