"""Finds a way to compute gradients in which no record changes a bit of another record's gradient.

In: the self-test (`models.self_test`) for a number of records at once. Out: the largest number that is exact, or a
refusal.

The sensitivity on which ε rests needs every bit. A unit that joins a step shifts the slots of the units after it. If a
slot changed gradients by rounding alone, the sum would change by more than one clip norm. How much more depends on
private records, and no measurement on dummy input bounds it. But which kernel runs, and in which order it adds, depends
only on shapes, and dummy input shows that. Shapes must be public for this: `unsupported` and `dynamic_shapes` look for
models in which they depend on values. So the run uses a shape in which all bits are equal, or it does not start. It
tries fewer CPU threads, and then fewer records at once. One record at a time has one slot and no neighbours, so a
deterministic kernel is always exact there.

On a CPU, two such causes were measured that depend on shapes. torch computes the end of a tensor, or of a thread's part
of it, by other instructions than its middle: `simd_remainder` refuses such shapes, because few numbers show the
difference. The matrix library uses another kernel if a thread's part is one row.

Two other causes do not depend on shapes, and the self-test does not always find them. Intel's matrix library may choose
a kernel by the address of a matrix, which `matrix_library` forbids. OpenMP may use fewer threads than torch counts:
`openmp` finds the setting, and the run is refused.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from tensorguard.models import matrix_library, openmp
from tensorguard.models.self_test import SelfTest, SelfTestError


def use_deterministic_kernels() -> None:
    """Make torch use only kernels that give the same bits for the same input, for the whole process. Call it before the
    first product of matrices: Intel's matrix library reads its setting only then.

    Products of bf16 and fp16 numbers are added up in fp32. On a CPU that is so anyway.
    """
    matrix_library.use_reproducible_products()
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    # Filling new memory costs time, and no kernel here reads memory that was not written.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.backends.cudnn.benchmark = False
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False


def find_bit_equal_shape(test: Callable[[int], SelfTest], *, rows: int, device: torch.device) -> int:
    """The largest number of records, up to `rows`, whose rows are bit-equal when they are computed at once.

    Both the records and, on a CPU, torch's threads are reduced to powers of two. torch keeps the number of threads with
    which the test passed.

    Args:
        test: the self-test with the given number of records at once.

    Raises:
        SelfTestError: not even one record at a time gives the same bits again, or an operation of the model has no
            deterministic implementation. On a CPU, too: matrices were multiplied before `use_deterministic_kernels`,
            or OpenMP may use fewer threads than torch counts.
    """
    if device.type == "cpu":
        _check_process()
    threads = torch.get_num_threads()
    for size in _halvings(rows):
        for used in _halvings(threads) if device.type == "cpu" else (threads,):
            torch.set_num_threads(used)
            with _refusing_random_order():
                report = test(size)
            if report.bit_equal:
                return size
    torch.set_num_threads(threads)
    raise SelfTestError(
        f"spec.model.name: a record's gradient changes by {report.neighbour_error:.1e} when it is computed again, even "
        "alone, so the privacy claim would not hold: set spec.training.precision to fp32, or choose another model."
    )


def _check_process() -> None:
    """Refuse settings of the process with which what the self-test shows would not hold for a later batch."""
    if not matrix_library.use_reproducible_products():
        raise SelfTestError(
            "This process multiplied matrices before the job began, so Intel's matrix library may round a record's "
            "gradient by its place in the batch, and the privacy claim would not hold: run the job in a process of its "
            "own, or set MKL_CBWR=AUTO,STRICT before the process starts."
        )
    if variable := openmp.setting_of_fewer_threads():
        raise SelfTestError(
            f"{variable} is set, so OpenMP may compute with fewer threads than torch counts, a record's gradient may "
            f"depend on the batch, and the privacy claim would not hold: remove {variable} from spec.cluster.env, the "
            "Secrets of envFrom and the environment of the image or the shell."
        )


@contextmanager
def _refusing_random_order() -> Iterator[None]:
    """Turn torch's error about an operation that is not deterministic into a SelfTestError."""
    try:
        yield
    except RuntimeError as error:
        if "deterministic implementation" not in str(error):
            raise
        operation = str(error).split(" does not have")[0]
        raise SelfTestError(
            f"spec.model.name: the model uses {operation}, which adds in a random order on this device, so a gradient "
            "is not the same bit for bit when it is computed again: choose another model."
        ) from error


def _halvings(number: int) -> Iterator[int]:
    """`number`, and then the powers of two below it, down to 1."""
    yield number
    while number > 1:
        number = 1 << ((number - 1).bit_length() - 1)
        yield number
