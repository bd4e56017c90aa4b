"""The self test at the start of a run: are these gradients really one record's each?

In: the model, its `PerExampleGradients`, and dummy input that is public (random tokens, no record of anybody). Out: a
`SelfTest` for the statement, or one sentence that names what is wrong. Then `engine` takes the first step.

Lists of supported layers age with every release of the libraries; this measures. Three things must hold: the rows add
up to what an ordinary backward pass gives; nothing but the records' own seeds draws random numbers; and a record's row
is the same in every slot and beside any neighbours. The last is wanted to the bit. Where a kernel cannot give the bit
(its result differs by rounding with the slot), the run goes on and the statement says so; anything above rounding is a
fault and stops it.

On a CPU, bits were measured to depend on the slot through two things only: torch computes the end of a tensor, or of a
thread's share of it, by other instructions than its middle (SiLU, tanh-GELU, sigmoid), and the matrix library uses
another kernel for a thread's share of one row. Neither happens where the micro-batch and the number of threads are
powers of two and a record's length times each layer's width is a multiple of 32; `settle_threads` looks for such a
number of threads.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import nn

from tensafe_api.reasons import Reason
from tensorguard.data.shard import IGNORE_INDEX
from tensorguard.models.dropout import record_seeds
from tensorguard.models.load import seeded
from tensorguard.models.tasks.base import Task
from tensorguard.privacy.gradients import Batch, PerExampleGradients

_SUM_TOLERANCE = 1e-4
"""Largest relative error of a parameter's summed rows. Both sides are fp32 whatever the base model's precision."""

_NEIGHBOUR_TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 5e-2, torch.float16: 1e-2}
"""Largest relative change of a row that may still be a kernel's rounding, by the base model's dtype."""

_TRIED = 2
"""How many records are tried in every slot: one of full length, and one that is padded in all but short batches."""


class SelfTestFailed(RuntimeError):
    """The model's gradients are not one record's each; the message names the parameter or module and the mend."""

    reason: ClassVar[Reason] = Reason.MODEL_UNSUPPORTED


@dataclass(frozen=True)
class SelfTest:
    """What was measured: the largest relative error of a sum, and of a row when slot and neighbours change.

    `bit_equal`: no bit of any row changed; then `neighbour_error` is exactly 0.
    """

    sum_error: float
    neighbour_error: float

    @property
    def bit_equal(self) -> bool:
        return self.neighbour_error == 0.0


def dummy_batches(
    task: Task, *, rows: int, length: int, vocabulary: int, device: str | torch.device = "cpu"
) -> Callable[[int], Batch]:
    """A maker of public batches of one shape: `make(seed)` has random tokens; row 0 is full, the others are padded."""

    def make(seed: int) -> Batch:
        generator = torch.Generator().manual_seed(seed)
        lengths = torch.randint(1, length + 1, (rows, 1), generator=generator)
        lengths[0] = length
        mask = (torch.arange(length) < lengths).long()
        ids = torch.randint(vocabulary, (rows, length), generator=generator) * mask
        batch = {"input_ids": ids, "attention_mask": mask, "labels": task.dummy_labels(ids, mask, generator)}
        return {name: tensor.to(device) for name, tensor in batch.items()}

    return make


def self_test(model: nn.Module, gradients: PerExampleGradients, make_dummy_batch: Callable[[int], Batch]) -> SelfTest:
    """Measure, on dummy input of the run's own shape, what the privacy proof assumes of the gradients.

    `make_dummy_batch(seed)` gives a batch of the micro-batch's shape (see `dummy_batches`). During the test the
    trainable parameters are moved by small random numbers (LoRA starts at B = 0, where half of all gradients are 0),
    and then put back exactly. Raises SelfTestFailed. Costs about six micro-batches.
    """
    first, other = make_dummy_batch(0), make_dummy_batch(1)
    with _moved(gradients.parameters):
        _check_randomness(model, gradients, first)
        with record_seeds(model, _seeds(first)):
            rows = gradients.compute(first, _rows(first))
            total, tried = rows.double().sum(dim=0), rows[:_TRIED].clone()
            ordinary = gradients.summed_gradient(first).double()
        return SelfTest(_sum_error(gradients, total, ordinary), _neighbour_error(model, gradients, first, other, tried))


def settle_threads(test: Callable[[], SelfTest]) -> SelfTest:
    """Run `test`; while rows are not bit-equal, run it again with fewer CPU threads (powers of two, down to one).

    Leaves torch with the first number of threads that gave bit-equality, or with the old one where none did.
    """
    before = threads = torch.get_num_threads()
    report = first = test()
    while not report.bit_equal and threads > 1:
        threads = 1 << ((threads - 1).bit_length() - 1)
        torch.set_num_threads(threads)
        report = test()
    if report.bit_equal:
        return report
    torch.set_num_threads(before)
    return first


@contextmanager
def _moved(parameters: list[tuple[str, nn.Parameter]]) -> Iterator[None]:
    kept = [parameter.detach().clone() for _, parameter in parameters]
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for _, parameter in parameters:
            parameter.add_(torch.randn(parameter.shape, generator=generator).to(parameter.device), alpha=0.02)
    try:
        yield
    finally:
        with torch.no_grad():
            for (_, parameter), old in zip(parameters, kept, strict=True):
                parameter.copy_(old)


def _check_randomness(model: nn.Module, gradients: PerExampleGradients, batch: Batch) -> None:
    """Raise where two forward passes under different global seeds differ, naming the first module that does."""

    def losses(seed: int) -> torch.Tensor:
        with seeded(seed), torch.no_grad(), record_seeds(model, _seeds(batch)):
            return gradients.losses(batch).nan_to_num()

    if torch.equal(losses(1), losses(2)):
        return
    seen: list[dict[str, torch.Tensor]] = []
    for seed in (1, 2):
        sums: dict[str, torch.Tensor] = {}
        hooks = [module.register_forward_hook(_note_sum(sums, name)) for name, module in model.named_modules()]
        try:
            sums["the loss"] = losses(seed)
        finally:
            for hook in hooks:
                hook.remove()
        seen.append(sums)
    random, again = seen
    differing = (name for name, sums in random.items() if name not in again or not torch.equal(sums, again[name]))
    name = next(differing, "the loss")
    raise SelfTestFailed(
        f"'{name}' gives another result under another random seed, so a dropout of the base model is still on "
        "and couples the records of a batch: use a model whose config can switch it off."
    )


def _note_sum(sums: dict[str, torch.Tensor], name: str) -> Callable[..., None]:
    """A forward hook that notes one number of a module's output: outputs themselves would fill the memory."""

    def hook(_module: nn.Module, _args: Any, output: Any) -> None:
        if isinstance(output, torch.Tensor):
            sums[name] = output.double().nansum()

    return hook


def _sum_error(gradients: PerExampleGradients, total: torch.Tensor, ordinary: torch.Tensor) -> float:
    """Largest relative difference, over the parameters, of the rows' sum and an ordinary gradient."""
    worst, start = 0.0, 0
    for name, parameter in gradients.parameters:
        part = slice(start, start + parameter.numel())
        start = part.stop
        error = _relative(total[part], ordinary[part])
        if not error <= _SUM_TOLERANCE:
            raise SelfTestFailed(
                f"the records' gradients of '{name}' add up to something {error:.1e} off the whole gradient: its layer "
                "cannot be trained record by record, take it out of spec.lora."
            )
        worst = max(worst, error)
    return worst


def _neighbour_error(
    model: nn.Module, gradients: PerExampleGradients, first: Batch, other: Batch, tried: torch.Tensor
) -> float:
    """Largest relative change of the first rows of `first`, which `tried` has, under changes of slot and neighbours."""
    rows, seeds, worst = _rows(first), _seeds(first), 0.0
    dtype = next((p.dtype for p in model.parameters() if not p.requires_grad), torch.float32)
    limit = _NEIGHBOUR_TOLERANCE[dtype]
    stay = max(1, min(len(tried), rows - 1))  # somebody else is always beside them
    beside = {name: torch.cat([tensor[:stay], other[name][stay:]]) for name, tensor in first.items()}
    if stay < rows:
        beside["labels"][-1] = IGNORE_INDEX  # a dummy row: a loss must not depend on the number of records either
    with record_seeds(model, [*seeds[:stay], *(seed + rows for seed in seeds[stay:])]):
        among_others = gradients.compute(beside, rows)[:stay].clone()
    for record, row in enumerate(tried):
        copies = {name: tensor[record : record + 1].expand_as(tensor).clone() for name, tensor in first.items()}
        with record_seeds(model, [seeds[record]] * rows):
            everywhere = gradients.compute(copies, rows)
        for again in (*among_others[record : record + 1], *everywhere):
            error = _relative(again, row)
            if not error <= limit:  # nor is NaN
                raise SelfTestFailed(
                    f"a record's gradient changes by {error:.1e} with its slot and neighbours, more than rounding "
                    "explains: this model couples the records of a batch and cannot be trained privately."
                )
            worst = max(worst, error)
    return worst


def _relative(value: torch.Tensor, reference: torch.Tensor) -> float:
    """Norm of the difference over the reference's norm; exactly 0 only for equal tensors."""
    if torch.equal(value, reference):
        return 0.0
    scale = float(torch.linalg.vector_norm(reference.double()))
    return float(torch.linalg.vector_norm(value.double() - reference.double())) / max(scale, 1e-12)


def _rows(batch: Batch) -> int:
    return len(batch["labels"])


def _seeds(batch: Batch) -> list[int]:
    return list(range(_rows(batch)))
