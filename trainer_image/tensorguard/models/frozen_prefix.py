"""Starts a model's passes at the first block that is trained: what is below depends on nothing but the record.

In: a model whose lower blocks are frozen, and the shard of a worker. Out: `Rows` whose micro-batches hold, beside what
the model reads, the *states* of their records: the hidden states that enter the first trained block. A pass over such
a micro-batch computes the embeddings, masks and positions as before, leaves out the blocks below, and hands the states
to that block.

A state is computed once, in the shape in which a step would compute it: the record's bucket, and as many records at
once. No slot and no neighbour changes its bits (`self_test`), and `check` compares gradients with and without states,
in every bit. States are private, as records are. Their file has no name once it is open, so nothing of it outlives the
process.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from tensorguard.data.batches import MicroBatch
from tensorguard.data.rows import Rows
from tensorguard.data.shard import Shard
from tensorguard.models.dropout import record_seeds

STATES = "frozen_states"
"""The name of the states among the tensors of a micro-batch: [m, positions, width], in the model's precision."""

_BLOCK = re.compile(r"(.*?\.[^.]*)\.(\d+)(?:\.|$)")
"""A module's name up to its first number: the list of blocks and the number of its block (as `targets` reads it)."""


class _ReachedError(Exception):
    """The first trained block was reached. A pass that only computes states ends here."""


class FrozenPrefix:
    """The blocks of a model below the first one that is trained."""

    def __init__(self, model: nn.Module, container: str, first: int) -> None:
        self._model = model
        self._states: torch.Tensor | None = None
        self._captured: torch.Tensor | None = None
        self._capturing = False
        blocks = model.get_submodule(container)
        assert isinstance(blocks, nn.ModuleList)
        self._hooks = [
            model.register_forward_pre_hook(self._take_states, with_kwargs=True),
            blocks[first].register_forward_pre_hook(self._enter, with_kwargs=True),
        ]
        self._skipped = list(blocks)[:first]
        for block in self._skipped:
            vars(block)["forward"] = _skipping(self, block.forward)

    @property
    def is_left_out(self) -> bool:
        """Whether the present pass has states, so that the blocks below compute nothing."""
        return self._states is not None

    def compute(self, inputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """The states of a micro-batch, [m, positions, width], from what the model reads."""
        self._capturing = True
        try:
            with torch.no_grad():
                self._model(**inputs)
        except _ReachedError:
            pass
        finally:
            self._capturing = False
        captured, self._captured = self._captured, None
        assert captured is not None
        return captured

    def close(self) -> None:
        """Let the model compute all blocks again."""
        for hook in self._hooks:
            hook.remove()
        for block in self._skipped:
            del vars(block)["forward"]

    def _take_states(self, _model: nn.Module, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        # They stay until the next pass: with gradient checkpointing, the backward pass computes the block again.
        self._states = kwargs.pop(STATES, None)
        return args, kwargs

    def _enter(self, _block: nn.Module, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]] | None:
        if self._capturing:
            self._captured = args[0] if args else kwargs["hidden_states"]
            raise _ReachedError
        if self._states is None:
            return None
        return ((self._states, *args[1:]), kwargs) if args else (args, kwargs | {"hidden_states": self._states})


def _skipping(prefix: FrozenPrefix, forward: Callable[..., Any]) -> Callable[..., Any]:
    """The forward pass of a block that hands its input on, in the form of its output, where the pass has states."""
    beside: list[tuple[None, ...] | None] = []

    def run(*args: Any, **kwargs: Any) -> Any:
        if not prefix.is_left_out:
            output = forward(*args, **kwargs)
            beside[:] = [tuple(None for _ in output[1:]) if isinstance(output, tuple) else None]
            return output
        hidden = args[0] if args else kwargs["hidden_states"]
        return hidden if beside[0] is None else (hidden, *beside[0])

    return run


def _single(output: Any) -> Any:
    """The one tensor of a block's output, which may have places for others."""
    return output[0] if isinstance(output, tuple) and all(each is None for each in output[1:]) else output


def find_first_trained_block(model: nn.Module, inputs: Mapping[str, torch.Tensor]) -> tuple[str, int] | None:
    """The list of blocks and the number of the first one that is trained, or None where nothing can be left out.

    All trained parameters are in or behind that block; the blocks before it each run once, in their order, and hand one
    tensor to the next.

    Args:
        inputs: what the model reads, for a pass that is observed.
    """
    trained = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    lists = {name for name, module in model.named_modules() if isinstance(module, nn.ModuleList)}
    matches = (_BLOCK.match(name) for name in trained)
    inside = [(match[1], int(match[2])) for match in matches if match and match[1] in lists]
    if len({name for name, _ in inside}) != 1:
        return None
    container, first = min(inside)
    return (container, first) if first and _runs_in_order(model, container, first, trained, inputs) else None


def _runs_in_order(
    model: nn.Module, container: str, first: int, trained: Sequence[str], inputs: Mapping[str, torch.Tensor]
) -> bool:
    """Whether one pass runs the blocks up to `first` once each, in order, before any module that is trained, and each
    hands its one output to the next.
    """
    blocks = list(model.get_submodule(container))[: first + 1]  # type: ignore[call-overload]
    owners = {model.get_submodule(name.rpartition(".")[0]) for name in trained}
    events: list[Any] = []
    handed: list[bool] = []
    last: list[Any] = []

    def enter(block: nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
        hidden = args[0] if args else kwargs.get("hidden_states")
        events.append(block)
        handed.append(isinstance(hidden, torch.Tensor) and (not last or hidden is last[-1]))

    def leave(_block: nn.Module, _args: Any, output: Any) -> None:
        last.append(_single(output))

    hooks = [
        *(block.register_forward_pre_hook(enter, with_kwargs=True) for block in blocks),
        *(block.register_forward_hook(leave) for block in blocks),
        *(owner.register_forward_pre_hook(lambda *_: events.append(None)) for owner in owners),
    ]
    try:
        with torch.no_grad(), record_seeds(model, [0] * len(next(iter(inputs.values())))):
            model(**inputs)
    finally:
        for hook in hooks:
            hook.remove()
    return all(handed) and events[: first + 1] == blocks and not any(block in blocks for block in events[first + 1 :])


class StateRows(Rows):
    """Rows that hold states beside what the model reads."""

    def __init__(self, form: Rows, prefix: FrozenPrefix, device: torch.device) -> None:
        """Args:
        form: makes what the model reads.
        device: of the model.
        """
        self.without_states = form
        self._prefix = prefix
        self._device = device
        self._stored: dict[Shard, _StoredStates] = {}

    @property
    def lengths(self) -> tuple[int, ...]:
        return self.without_states.lengths

    def build(self, shard: Shard, records: Sequence[int], size: int, length: int) -> dict[str, torch.Tensor]:
        inputs = self.without_states.build(shard, records, size, length)
        return {**inputs, STATES: self._stored[shard].rows(records, size, length)}

    def dummies(self, rows: int, length: int, generator: torch.Generator) -> dict[str, torch.Tensor]:
        """The states of padding are 0, as those of records are."""
        inputs = self.without_states.dummies(rows, length, generator)
        states = self._prefix.compute({name: each.to(self._device) for name, each in inputs.items()}).cpu()
        mask = inputs.get("attention_mask")
        return {**inputs, STATES: states if mask is None else states * mask.unsqueeze(-1).to(states.dtype)}

    def bytes_of(self, *shards: Shard) -> int:
        """The size of the states of these shards together."""
        one = self.dummies(1, self.lengths[-1], torch.Generator().manual_seed(0))[STATES][0]
        positions = 0
        for shard in shards:
            starts = shard.token_starts()
            positions += int(starts[-1]) if starts is not None else shard.number_of_records * one.shape[0]
        return positions * one.shape[1] * one.dtype.itemsize

    def fill(
        self,
        shard: Shard,
        batches: Iterable[MicroBatch],
        folder: Path,
        progress: Callable[[int], None] = lambda _: None,
    ) -> None:
        """Compute the states of the records in `batches`, which the shard's micro-batches then have.

        Args:
            batches: micro-batches of the wrapped rows, in the shape of those that follow.
            folder: where the file of the states is created; it has no name there.
            progress: called with the number of records that were computed, after each micro-batch.
        """
        stored = self._stored[shard] = _StoredStates(shard, folder)
        for batch in batches:
            states = self._prefix.compute({name: each.to(self._device) for name, each in batch.inputs.items()})
            stored.keep([shard.records(unit)[i] for unit, i in zip(batch.units, batch.records)], states.cpu())
            progress(len(batch.units))


class _StoredStates:
    """The states of a shard's records in a mapped file, one after the other, without those of padding."""

    def __init__(self, shard: Shard, folder: Path) -> None:
        self._folder = folder
        self._records = shard.number_of_records
        self._token_starts = shard.token_starts()
        self._starts = np.zeros(1, np.int64)
        self._file = torch.empty(0)
        self._positions = 0

    def keep(self, records: Sequence[int], states: torch.Tensor) -> None:
        if not self._positions:
            self._positions = states.shape[1]
            starts = self._token_starts
            self._starts = np.arange(self._records + 1) * self._positions if starts is None else starts
            self._file = _mapped(self._folder, int(self._starts[-1]), states.shape[2], states.dtype)
        for record, own in zip(records, states):
            start, end = self._starts[record], self._starts[record + 1]
            self._file[start:end] = own[: end - start]

    def rows(self, records: Sequence[int], size: int, length: int) -> torch.Tensor:
        positions = self._positions if self._token_starts is None else length
        states = torch.zeros(size, positions, self._file.shape[-1], dtype=self._file.dtype)
        for row, record in zip(states, records):
            start, end = self._starts[record], self._starts[record + 1]
            row[: end - start] = self._file[start:end]
        return states


def _mapped(folder: Path, positions: int, width: int, dtype: torch.dtype) -> torch.Tensor:
    """A tensor [positions, width] in a file without a name. Its pages leave the memory when others need it."""
    descriptor, path = tempfile.mkstemp(prefix="states-", dir=folder)
    try:
        size = positions * width
        os.posix_fallocate(descriptor, 0, max(1, size * dtype.itemsize))  # a full disk is an error here, not a signal
        return torch.from_file(path, shared=True, size=size, dtype=dtype).view(positions, width)
    finally:
        os.close(descriptor)
        Path(path).unlink()
