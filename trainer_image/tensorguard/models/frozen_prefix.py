"""Starts a model's passes where it is trained first: what comes before depends on nothing but the record.

In: a model of which only the upper blocks are trained, or only the head, and the shard of a worker. Out: `Rows` whose
micro-batches hold the *states* of their records: what enters the first trained block, or the head. A pass over such a
micro-batch leaves out what is frozen before it. Before a block it computes embeddings, masks and positions as before.
Before the head it computes nothing, and the micro-batch holds the states alone.

A state is computed once, in the shape in which a step would compute it: the record's bucket, and as many records at
once. No slot and no neighbour changes its bits (`self_test`), and `states_change_nothing` compares gradients with and
without states, in every bit. States are private, as records are. Their file has no name once it is open, so nothing of
it outlives the process.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from transformers.modeling_outputs import TokenClassifierOutput

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
    """What a model computes before the first module that is trained.

    Attributes:
        left_out: what a pass with states leaves out, such as "4 of 6 layers".
        needs_inputs: whether a pass needs what the model reads beside the states.
    """

    left_out: str
    needs_inputs: bool

    def __init__(self, model: nn.Module, entered: nn.Module) -> None:
        """Args:
        entered: the first module that is trained, or has a part that is.
        """
        self._model = model
        self._states: torch.Tensor | None = None
        self._captured: torch.Tensor | None = None
        self._capturing = False
        self._hooks = [
            model.register_forward_pre_hook(self._take_states, with_kwargs=True),
            entered.register_forward_pre_hook(self._enter, with_kwargs=True),
        ]
        self._replaced: list[nn.Module] = []

    @property
    def is_left_out(self) -> bool:
        """Whether the present pass has states."""
        return self._states is not None

    def compute(self, inputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """The states of a micro-batch, [m, positions, width] or [m, width], from what the model reads."""
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
        """Let the model compute everything again."""
        for hook in self._hooks:
            hook.remove()
        for module in self._replaced:
            del vars(module)["forward"]

    def _replace(self, module: nn.Module, forward: Callable[..., Any]) -> None:
        """Let `module` compute `forward`. The attribute hides the method of the class until it is removed."""
        vars(module)["forward"] = forward
        self._replaced.append(module)

    def _take_states(self, _model: nn.Module, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        # They stay until the next pass: with gradient checkpointing, the backward pass computes the block again.
        self._states = kwargs.pop(STATES, None)
        return args, kwargs

    def _enter(self, _module: nn.Module, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]] | None:
        if self._capturing:
            self._captured = args[0] if args else kwargs["hidden_states"]
            raise _ReachedError
        if self._states is None:
            return None
        # A block that is computed again in the backward pass has a gradient only if its input needs one.
        self._states.requires_grad_((args[0] if args else kwargs["hidden_states"]).requires_grad)
        return ((self._states, *args[1:]), kwargs) if args else (args, kwargs | {"hidden_states": self._states})


class FrozenBlocks(FrozenPrefix):
    """The blocks of a model below the first one that is trained."""

    needs_inputs = True

    def __init__(self, model: nn.Module, container: str, first: int) -> None:
        """Args:
        container: the name of the list of blocks.
        first: the number of the first block that is trained.
        """
        blocks = model.get_submodule(container)
        assert isinstance(blocks, nn.ModuleList)
        super().__init__(model, blocks[first])
        self.left_out = f"{first} of {len(blocks)} layers"
        for block in list(blocks)[:first]:
            self._replace(block, _skipping(self, block.forward))


class FrozenBody(FrozenPrefix):
    """All of a model but its head, a linear layer that gives the logits."""

    left_out = "all layers"
    needs_inputs = False

    def __init__(self, model: nn.Module, head: nn.Module) -> None:
        super().__init__(model, head)
        forward = model.forward

        def run(*args: Any, **kwargs: Any) -> Any:
            if not self.is_left_out:
                return forward(*args, **kwargs)
            return TokenClassifierOutput(logits=head(self._states))

        self._replace(model, run)


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


def find_frozen_prefix(model: nn.Module, inputs: Mapping[str, torch.Tensor]) -> FrozenPrefix | None:
    """What `model` can leave out before the first module that is trained; None where that is nothing.

    Args:
        inputs: what the model reads, for a pass that is observed.
    """
    trained = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    lists = {name for name, module in model.named_modules() if isinstance(module, nn.ModuleList)}
    matches = (_BLOCK.match(name) for name in trained)
    inside = [(match[1], int(match[2])) for match in matches if match and match[1] in lists]
    if not inside:
        return _find_body(model, trained, inputs)
    container, first = min(inside)
    one_list = len({name for name, _ in inside}) == 1
    if one_list and first and _runs_in_order(model, container, first, trained, inputs):
        return FrozenBlocks(model, container, first)
    return None


def _find_body(model: nn.Module, trained: Sequence[str], inputs: Mapping[str, torch.Tensor]) -> FrozenBody | None:
    """All but the head, if this is one linear layer that runs once, and whose output is the model's."""
    owners = {model.get_submodule(name.rpartition(".")[0]) for name in trained}
    (head,) = owners if len(owners) == 1 else (None,)
    if type(head) is not nn.Linear:
        return None
    outputs: list[Any] = []
    hook = head.register_forward_hook(lambda _head, _args, output: outputs.append(output))
    try:
        with torch.no_grad(), record_seeds(model, [0] * len(next(iter(inputs.values())))):
            logits = model(**inputs).logits
    finally:
        hook.remove()
    return FrozenBody(model, head) if len(outputs) == 1 and logits is outputs[0] else None


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
        inputs = self.without_states.build(shard, records, size, length) if self._prefix.needs_inputs else {}
        return {**inputs, STATES: self._stored[shard].rows(records, size, length)}

    def dummies(
        self, rows: int, length: int, generator: torch.Generator, *, padded: bool = False
    ) -> dict[str, torch.Tensor]:
        """The states of padding are 0, as those of records are.

        Raises:
            ValueError: the states have another form than [m, positions, width] or [m, width].
        """
        inputs = self.without_states.dummies(rows, length, generator, padded=padded)
        states = self._prefix.compute({name: each.to(self._device) for name, each in inputs.items()}).cpu()
        mask = inputs.get("attention_mask")
        positions = tuple(states.shape[1:-1])  # of images any number
        if len(states) != rows or len(positions) > 1 or (mask is not None and positions not in ((), (length,))):
            raise ValueError(f"the states have the shape {tuple(states.shape)}")
        if mask is not None and states.dim() == 3:
            states = states * mask.unsqueeze(-1).to(states.dtype)
        return {**inputs, STATES: states}

    def bytes_of(self, *shards: Shard) -> int:
        """The size of the states of these shards together."""
        one = self.dummies(1, self.lengths[-1], torch.Generator().manual_seed(0))[STATES]
        return sum(int(_starts(shard, one)[-1]) for shard in shards) * one.shape[-1] * one.dtype.itemsize

    def fill(
        self,
        shard: Shard,
        batches: Iterable[MicroBatch],
        folder: Path,
    ) -> Iterator[int]:
        """Compute the states of the records in `batches`, which the shard's micro-batches then have.

        Yields the number of records that were computed, after each micro-batch.

        Args:
            batches: micro-batches of the wrapped rows, in the shape of those that follow.
            folder: where the file of the states is created; it has no name there.
        """
        stored = self._stored[shard] = _StoredStates(shard, folder)
        for batch in batches:
            states = self._prefix.compute({name: each.to(self._device) for name, each in batch.inputs.items()})
            stored.keep([shard.records(unit)[i] for unit, i in zip(batch.units, batch.records)], states.cpu())
            yield len(batch.units)


def _starts(shard: Shard, states: torch.Tensor) -> np.ndarray:
    """Where the states of each record of `shard` begin in its file, and where the last ones end, in positions.

    A record has as many positions as tokens, if its states have positions: [m, positions, width].
    """
    tokens = shard.token_starts() if states.dim() == 3 else None
    positions = states.shape[1] if states.dim() == 3 else 1
    return np.arange(shard.number_of_records + 1) * positions if tokens is None else tokens


class _StoredStates:
    """The states of a shard's records in a mapped file, one after the other, without those of padding."""

    def __init__(self, shard: Shard, folder: Path) -> None:
        self._folder = folder
        self._shard = shard
        self._starts = np.zeros(1, np.int64)
        self._file = torch.empty(0)
        self._shape: tuple[int, ...] = ()
        """Of the states of a record, without those of padding where they have positions of tokens."""

    def keep(self, records: Sequence[int], states: torch.Tensor) -> None:
        if not self._shape:
            self._shape = tuple(states.shape[1:])
            self._starts = _starts(self._shard, states)
            self._file = _mapped(self._folder, int(self._starts[-1]), states.shape[-1], states.dtype)
        for record, own in zip(records, states.reshape(len(states), -1, states.shape[-1])):
            start, end = self._starts[record], self._starts[record + 1]
            self._file[start:end] = own[: end - start]

    def rows(self, records: Sequence[int], size: int, length: int) -> torch.Tensor:
        by_token = len(self._shape) == 2 and self._shard.token_starts() is not None
        states = torch.zeros(size, *((length, *self._shape[1:]) if by_token else self._shape), dtype=self._file.dtype)
        if not by_token:
            states[: len(records)] = self._file.view(-1, *self._shape)[list(records)]
            return states
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
