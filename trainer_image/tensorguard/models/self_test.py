"""The self-test at the start of a run: does each gradient depend on one record alone?

In: the model, its `PerExampleGradients`, a `GridClipper`, and public dummy input (random tokens or pixels, no real
record). Out: a `SelfTest` with the measured errors, or one sentence that names the fault.

A list of supported layers becomes outdated with every release of the libraries, so this module measures. Four
conditions must hold. No tensor's size depends on the records' values. The rows add up to the gradient of an ordinary
backward pass. Only the seeds of the records affect random numbers. A record's row is the same in every slot and beside
any other records, in every bit, as a float and on the integer grid. `bit_equality` decides what follows where it
differs by rounding.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import nn

from tensafe_api.reasons import Reason
from tensorguard.data.rows import Rows
from tensorguard.data.shard import IGNORE_INDEX
from tensorguard.models.dropout import record_seeds
from tensorguard.models.dynamic_shapes import find_value_shape
from tensorguard.models.frozen_prefix import STATES
from tensorguard.models.load import seeded
from tensorguard.models.simd_remainder import VectorTails
from tensorguard.models.tasks.base import Task
from tensorguard.privacy.clipping import GridClipper
from tensorguard.privacy.gradients import Batch, NotByRecordError, PerExampleGradients

_SUM_TOLERANCE = 1e-4
"""Largest relative error of a parameter's summed rows. Both sides are fp32 whatever the base model's precision."""

_ROUNDING = {torch.float32: 1e-4, torch.bfloat16: 5e-2, torch.float16: 1e-2}
"""Largest relative change of a row that can be rounding of a kernel, by the base model's dtype. A larger change means
that the model couples the records of a batch, so that no shape can be exact."""

_TRIED = 2
"""Number of records that are tested in every slot: one of full length, and one that is usually padded."""


class SelfTestError(RuntimeError):
    """A gradient does not depend on one record alone. The message names the parameter or module, and the fix."""

    reason: ClassVar[Reason] = Reason.MODEL_UNSUPPORTED


@dataclass(frozen=True)
class SelfTest:
    """The measured errors: the largest relative error of a sum, and of a row when its slot or other records change.

    `uneven` is an operation that may change a row with its slot for input that was not tried (`simd_remainder`), or "".
    `bit_equal`: no bit of any row changed, and none can. Only then is `neighbour_error` exactly 0.
    """

    sum_error: float
    neighbour_error: float
    uneven: str = ""

    @property
    def bit_equal(self) -> bool:
        return self.neighbour_error == 0.0 and not self.uneven


def dummy_batches(
    task: Task, form: Rows, *, rows: int, length: int, device: str | torch.device = "cpu", padded: bool = False
) -> Callable[[int], Batch]:
    """Return a function from a seed to a public batch of random inputs, in the form of the run's micro-batches.

    Args:
        padded: as for `Rows.dummies`.
    """

    def make(seed: int) -> Batch:
        generator = torch.Generator().manual_seed(seed)
        inputs = form.dummies(rows, length, generator, padded=padded)
        batch = {**inputs, "labels": task.dummy_labels(inputs, generator)}
        return {name: tensor.to(device) for name, tensor in batch.items()}

    return make


def self_test(
    model: nn.Module,
    gradients: PerExampleGradients,
    clipper: GridClipper,
    make_dummy_batch: Callable[[int], Batch],
    first_fault: Callable[[str], str] = lambda own: own,
) -> SelfTest:
    """Measure, on dummy input of the run's shape, what the privacy proof assumes of the gradients.

    During the test, small random numbers are added to the trainable parameters (LoRA starts at B = 0, where half of all
    gradients are 0). Afterwards the parameters have exactly their earlier values. Costs about eight micro-batches.

    Args:
        make_dummy_batch: from a seed, a batch of the micro-batch's shape (see `dummy_batches`).
        first_fault: from a fault that was found here, or "", to the one with which the test ends. Ranks that share a
            base model run the same passes, so a fault on one of them must end the test on all.

    Raises:
        SelfTestError: a condition does not hold.
    """
    first, other = make_dummy_batch(0), make_dummy_batch(1)

    def end_with(fault: str) -> None:
        if fault := first_fault(fault):
            raise SelfTestError(fault)

    with _perturbed(gradients.parameters), _naming_the_field():
        if first_fault("" if _is_repeatable(gradients, model, first) else "random"):
            end_with(_find_randomness(model, gradients, first))
        end_with(_shape_fault(model, gradients, first))
        with record_seeds(model, _seeds(first)):
            rows = gradients.compute(first, _rows(first))
            sum_error, fault = _sum_error(gradients, rows, gradients.summed_gradient(first))
        end_with(fault)
        tried = rows[:_TRIED].clone()
        neighbour_error, fault = _neighbour_error(model, gradients, clipper, first, other, tried)
        end_with(fault)
        return SelfTest(sum_error, neighbour_error, _uneven_operation(model, gradients, first))


def states_change_nothing(model: nn.Module, gradients: PerExampleGradients, batch: Batch) -> bool:
    """Whether the gradients of a dummy batch have the same bits with and without its states (`frozen_prefix`)."""
    whole = {name: tensor for name, tensor in batch.items() if name != STATES}
    rows = _rows(batch)
    with _perturbed(gradients.parameters), record_seeds(model, _seeds(batch)):
        with_states = gradients.compute(batch, rows).clone()
        return torch.equal(with_states, gradients.compute(whole, rows))


@contextmanager
def _perturbed(parameters: list[tuple[str, nn.Parameter]]) -> Iterator[None]:
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


@contextmanager
def _naming_the_field() -> Iterator[None]:
    """Turn an error about a trained layer into a SelfTestError. It quotes no record, because the input is public."""
    try:
        yield
    except NotByRecordError as error:
        raise SelfTestError(f"spec.lora: {error}") from error


def _losses(gradients: PerExampleGradients, model: nn.Module, batch: Batch, seed: int) -> torch.Tensor:
    with seeded(seed), torch.no_grad(), record_seeds(model, _seeds(batch)):
        return gradients.losses(batch).nan_to_num()


def _is_repeatable(gradients: PerExampleGradients, model: nn.Module, batch: Batch) -> bool:
    """Whether forward passes do not depend on the global seed."""
    return torch.equal(_losses(gradients, model, batch, 1), _losses(gradients, model, batch, 2))


def _find_randomness(model: nn.Module, gradients: PerExampleGradients, batch: Batch) -> str:
    """The fault of a model whose passes depend on the global seed, with the first module that differs."""
    seen: list[dict[str, torch.Tensor]] = []
    for seed in (1, 2):
        sums: dict[str, torch.Tensor] = {}
        hooks = [module.register_forward_hook(_record_sum(sums, name)) for name, module in model.named_modules()]
        try:
            sums["the loss"] = _losses(gradients, model, batch, seed)
        finally:
            for hook in hooks:
                hook.remove()
        seen.append(sums)
    random, again = seen
    differing = (name for name, sums in random.items() if name not in again or not torch.equal(sums, again[name]))
    name = next(differing, "the loss")
    return (
        f"spec.model.name: '{name}' gives another result with another random seed, so a dropout of the base model is "
        "still on and couples the records of a batch: use a model whose config can switch it off."
    )


def _record_sum(sums: dict[str, torch.Tensor], name: str) -> Callable[..., None]:
    """A forward hook that records one number for a module's output. The outputs themselves would fill the memory."""

    def hook(_module: nn.Module, _args: Any, output: Any) -> None:
        if isinstance(output, torch.Tensor):
            sums[name] = output.double().nansum()

    return hook


def _shape_fault(model: nn.Module, gradients: PerExampleGradients, batch: Batch) -> str:
    """The fault of a model in which a record's values change the shape of the others. One record has no others."""
    if _rows(batch) == 1:
        return ""
    name = find_value_shape(model, lambda each: _losses(gradients, model, each, 1), batch)
    if not name:
        return ""
    return (
        f"spec.model.name: the size of the output of '{name}' depends on the records' values, so a record changes the "
        "rounding of the others: set spec.training.microBatchSize to 1, or choose another model."
    )


def _uneven_operation(model: nn.Module, gradients: PerExampleGradients, batch: Batch) -> str:
    """An operation that may change a row with its slot, on a CPU; "" if there is none. One record has one slot."""
    if _rows(batch) == 1 or batch["labels"].device.type != "cpu":
        return ""
    one = {name: tensor[:1] for name, tensor in batch.items()}
    with VectorTails() as own, record_seeds(model, _seeds(one)):
        gradients.compute(one, 1)
    with VectorTails(own) as tails, record_seeds(model, _seeds(batch)):
        gradients.compute(batch, _rows(batch))
    found: str = tails.uneven
    return found


def _sum_error(gradients: PerExampleGradients, rows: torch.Tensor, ordinary: torch.Tensor) -> tuple[float, str]:
    """Largest relative difference, over the parameters, between the sum of the rows [m, d] and `ordinary` [d]; and the
    fault if it is too large.
    """
    worst, fault, start = 0.0, "", 0
    for name, parameter in gradients.parameters:
        part = slice(start, start + parameter.numel())
        start = part.stop
        error = _relative(rows[:, part].double().sum(dim=0), ordinary[part].double())
        if not error <= _SUM_TOLERANCE and not fault:
            fault = (
                f"spec.lora: the records' gradients of '{name}' add up to a sum that is off by {error:.1e}: its layer "
                "cannot be trained record by record, remove it from spec.lora."
            )
        worst = max(worst, error)
    return worst, fault


def _neighbour_error(
    model: nn.Module,
    gradients: PerExampleGradients,
    clipper: GridClipper,
    first: Batch,
    other: Batch,
    tried: torch.Tensor,
) -> tuple[float, str]:
    """Largest relative change of `tried`, the first rows of `first`, when their slots or the other records change; and
    the fault if it is more than rounding.
    """
    rows, seeds, worst, fault = _rows(first), _seeds(first), 0.0, ""
    # The scales of a quantised base are fp32 in every precision.
    limit = max(_ROUNDING.get(parameter.dtype, 0.0) for parameter in model.parameters())
    stay = max(1, min(len(tried), rows - 1))  # at least one other record is beside them
    beside = {name: torch.cat([tensor[:stay], other[name][stay:]]) for name, tensor in first.items()}
    if stay < rows:
        beside["labels"][-1] = IGNORE_INDEX  # a dummy row: a loss must not depend on the number of records
    else:
        with record_seeds(model, seeds):
            gradients.compute(other, rows)  # one record at a time: the others come before it instead of beside it
    with record_seeds(model, [*seeds[:stay], *(seed + rows for seed in seeds[stay:])]):
        among_others = gradients.compute(beside, rows)[:stay].clone()
    for record, row in enumerate(tried):
        copies = {name: tensor[record : record + 1].expand_as(tensor).clone() for name, tensor in first.items()}
        with record_seeds(model, [seeds[record]] * rows):
            everywhere = gradients.compute(copies, rows)
        for again in (*among_others[record : record + 1], *everywhere):
            error = _relative(again, row)
            if not error <= limit and not fault:  # also true for NaN
                fault = (
                    f"spec.model.name: a record's gradient changes by {error:.1e} with its slot and the other records, "
                    "which is more than rounding: this model couples the records of a batch, choose another model."
                )
            worst = max(worst, error)
        alone = clipper.to_grid(row.clone().unsqueeze(0), [record])
        if worst == 0.0 and not _all_equal(clipper.blocks(everywhere, [record] * rows), alone):
            worst = 1 / clipper.grid
    return worst, fault


def _all_equal(blocks: Iterator[torch.Tensor], row: torch.Tensor) -> bool:
    """Whether each row of the blocks [rows, d] is equal to `row` [1, d]. One block exists at a time."""
    for block in blocks:
        equal = torch.equal(block, row.expand_as(block))
        del block
        if not equal:
            return False
    return True


def _relative(value: torch.Tensor, reference: torch.Tensor) -> float:
    """Norm of the difference divided by the reference's norm. It is exactly 0 only for equal tensors."""
    if torch.equal(value, reference):
        return 0.0
    scale = float(torch.linalg.vector_norm(reference.double()))
    return float(torch.linalg.vector_norm(value.double() - reference.double())) / max(scale, 1e-12)


def _rows(batch: Batch) -> int:
    return len(batch["labels"])


def _seeds(batch: Batch) -> list[int]:
    return list(range(_rows(batch)))
