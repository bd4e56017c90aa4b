"""The memory of a worker, for `tensafe plan`: its parts, the total, whether it fits, and what to change if not.

In: a job, and on request the memory of a GPU. Out: text for a terminal, or figures for a script. The figures are those
of `tensorguard.models.memory`, and assumptions for what CUDA and the process take. Weights are neither downloaded nor
loaded.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from tensafe_api.manifest.text import dump_manifest, load_manifest
from tensafe_api.resources.job import Spec, TenSafeTrainingJob
from tensafe_api.resources.numeric import parse_quantity

if TYPE_CHECKING:
    from tensorguard.cli.job_loading import LoadedJob
    from tensorguard.cli.tables import Row
    from tensorguard.models.memory import Device, LeftOut, MemoryEstimate, MemoryModel
    from tensorguard.models.source import ModelSource

BUFFERS = 14 << 20
"""Bytes that threads and the kernels of a CPU take in a run beside tensors."""
PROCESS = (958 << 20) + BUFFERS
"""Bytes of a process that has imported what a worker imports, and BUFFERS. Both are measured by
`python -m benchmarks.plan_memory`.
"""
CUDA_CONTEXT = 1270 << 20
"""Bytes of a GPU that CUDA and its libraries take for a process: measured on an H200. It depends on GPU and driver."""
ALLOCATOR_SHARE = 0.10
"""The share by which torch's allocator on a GPU exceeds what tensors hold. `python -m benchmarks.gpu` measured 3 to
14 %, and up to 33 % where the GPU had memory left.
"""
GPU_SIZES = (24, 40, 48, 80)
"""Common GPUs, in GB of 10^9 bytes: cards of this name have a little more."""
_GIB = 1 << 30
_SCHEMES = ("INT8", "NF4")
"""Values of spec.model.quantization, the one that changes results less first."""
_GPUS = (2, 4, 8)

Changes = tuple[str, ...]
"""Changes of a manifest, each as `--set` takes it."""


@dataclass(frozen=True)
class WorkerMemory:
    """The memory of one worker of a job.

    Attributes:
        spec: of the job.
        available: bytes of the GPU, or of the worker on a CPU; None for a GPU of unknown size.
        left_out: what it computes once for each record; None where that is nothing.
        remedies: changes with which it fits, each by itself, if it does not without. For a GPU of unknown size: with
            which it fits on the largest of `GPU_SIZES`.
    """

    spec: Spec
    device: Device
    precision: str
    estimate: MemoryEstimate
    available: int | None
    left_out: LeftOut | None = None
    remedies: tuple[Changes, ...] = ()

    @property
    def needed(self) -> int:
        """Bytes of the device, with what CUDA or the process takes."""
        return _needed(self.estimate, self.device)

    @property
    def fits(self) -> bool | None:
        """Whether it fits; None for a GPU of unknown size."""
        return None if self.available is None else self.needed <= self.available

    @property
    def host(self) -> int:
        """Bytes of the main memory of a worker with GPUs. Each GPU has a process of its own."""
        return self.spec.cluster.ranks_per_worker * (self.estimate.host + PROCESS)

    @property
    def states(self) -> int:
        """Bytes of the disk for what the frozen blocks give: `atLeast` units with one record of full length each."""
        units = math.ceil(self.spec.dataset.unit.at_least / self.spec.cluster.workers)
        return self.left_out.record_bytes * units if self.left_out else 0

    def figures(self) -> dict[str, object]:
        """The figures for a script, in bytes."""
        estimate = self.estimate
        return {
            "device": self.device,
            "precision": self.precision,
            "microBatchSize": estimate.micro_batch,
            "trainedParameters": estimate.dimension,
            "weights": estimate.weights,
            "gatheredLayers": estimate.gathered_layers,
            "adapter": estimate.adapter,
            "rows": estimate.rows,
            "sum": estimate.sum,
            "passes": estimate.passes,
            "clipping": estimate.clipping,
            "update": estimate.update,
            "peak": estimate.total,
            "needed": self.needed,
            "available": self.available,
            "fits": self.fits,
            "remedies": self.remedies,
            "host": self.host if self.device == "cuda" else None,
            "leftOut": self.left_out.what if self.left_out else None,
            "states": self.states,
        }

    def advice(self) -> str:
        """What to change, if it does not fit."""
        if not self.remedies:
            return "choose a smaller model or a GPU with more memory"
        lines = ["to make it fit, add this:" if len(self.remedies) == 1 else "to make it fit, add one of these:"]
        lines += ["  " + " ".join(f"--set {change}" for change in remedy) for remedy in self.remedies]
        if any(change.startswith("spec.model.quantization=") for remedy in self.remedies for change in remedy):
            lines.append("Quantisation takes time and changes results a little: docs/choosing-hyperparameters.md")
        return "\n".join(lines)

    def warnings(self) -> Iterator[str]:
        """What does not fit, with the fix."""
        worker = self.spec.cluster.worker
        if self.fits is False and self.available is not None:
            where = f"spec.cluster.worker.memory: {worker.memory}"
            if self.device == "cuda":
                where = f"--gpu-memory: {size_text(self.available)}"
            yield f"{where} is less than the {size_text(self.needed)} that a worker needs: {self.advice()}"
        disk = worker.ephemeral_storage
        if disk is not None and parse_quantity(disk) < 2 * self.states:
            yield (
                f"spec.cluster.worker.ephemeralStorage: {disk} is less than twice the {size_text(self.states)} that a "
                "worker keeps of the frozen layers, so that it may compute them in every step: raise it to "
                f"{math.ceil(2 * self.states / _GIB)}Gi"
            )
        if self.device == "cuda" and parse_quantity(worker.memory) < self.host:
            yield (
                f"spec.cluster.worker.memory: {worker.memory} is less than the {size_text(self.host)} that a worker "
                f"needs beside its GPUs, mostly to load the weights: raise it to {math.ceil(self.host / _GIB)}Gi"
            )


def worker_memory(loaded: LoadedJob, base_dir: Path, gpu_memory: int | None) -> WorkerMemory:
    """Estimate the memory of a worker of the job, whose relative paths start at `base_dir`.

    Args:
        gpu_memory: bytes of the GPU that the job should fit on; then the worker has a GPU.

    Raises:
        ValueError, OSError, ImportError: the model's config cannot be read, or the model cannot be trained.
    """
    import torch

    from tensafe_api.resolve import keeps_states
    from tensorguard.models.memory import MemoryModel
    from tensorguard.models.source import resolve_model
    from tensorguard.runners.preflight import with_absolute_paths
    from tensorguard.training.base_model import precision_of

    job = with_absolute_paths(loaded.job, base_dir)
    spec = job.spec
    device: Device = "cuda" if gpu_memory is not None or spec.cluster.worker.gpus else "cpu"
    available = gpu_memory if device == "cuda" else int(parse_quantity(spec.cluster.worker.memory))
    precision = precision_of(job, torch.device(device))
    source = resolve_model(spec.model.name, spec.model.revision)
    model = MemoryModel(spec, source, device, precision)
    left_out = model.left_out() if keeps_states(spec, loaded.plan) else None
    found = WorkerMemory(spec, device, precision, model.estimate(spec.training.micro_batch_size), available, left_out)
    limit = GPU_SIZES[-1] * 10**9 if available is None else available
    if found.needed <= limit:
        return found
    remedies = tuple(_remedies(_Search(job, source, found, limit)))
    if device == "cpu":
        remedies = ((f"spec.cluster.worker.memory={math.ceil(found.needed / _GIB)}Gi",), *remedies)
    return replace(found, remedies=remedies)


def _needed(estimate: MemoryEstimate, device: Device) -> int:
    if device == "cpu":
        return estimate.total + PROCESS
    return estimate.total + _allocator(estimate) + CUDA_CONTEXT


def _allocator(estimate: MemoryEstimate) -> int:
    return int(ALLOCATOR_SHARE * estimate.total)


@dataclass(frozen=True)
class _Search:
    """Tries changes of a job that does not fit in `limit` bytes. `before` is its memory without them."""

    job: TenSafeTrainingJob
    source: ModelSource
    before: WorkerMemory
    limit: int

    def model(self, *changes: str) -> tuple[Spec, MemoryModel] | None:
        """The job after `changes`; None if a rule of the manifest or the model refuses them."""
        from tensorguard.models.memory import MemoryModel

        try:
            spec = load_manifest(dump_manifest(self.job, "json"), changes).spec
            return spec, MemoryModel(spec, self.source, self.before.device, self.before.precision)
        except ValueError:
            return None

    def remedy(self, *changes: str) -> tuple[int, Changes] | None:
        """The most records at once with which the job fits after `changes`, and all changes that this takes.

        None if it does not fit with any number of records.
        """
        if (changed := self.model(*changes)) is None:
            return None
        spec, model = changed
        own = spec.training.micro_batch_size
        memory = replace(self.before, spec=spec, estimate=model.estimate(1))  # first, so that most failures cost one
        if memory.needed > self.limit:
            return None
        powers = (1 << power for power in reversed(range(1, (own - 1).bit_length())))
        for size in [own, *powers] if own > 1 else []:
            larger = replace(memory, estimate=model.estimate(size))
            if larger.needed <= self.limit:
                memory = larger
                break
        size = memory.estimate.micro_batch
        if size != own:
            changes += (f"spec.training.microBatchSize={size}",)
        if memory.device == "cuda" and memory.host > parse_quantity(spec.cluster.worker.memory):
            changes += (f"spec.cluster.worker.memory={math.ceil(memory.host / _GIB)}Gi",)
        return size, changes


def _remedies(search: _Search) -> Iterator[Changes]:
    """The first change of each kind with which the job fits, the cheapest kinds first.

    Fewer records at once and gradient checkpointing change no result. If they do not suffice: quantisation, and more
    GPUs for each worker, each on top of them. If neither does: both.
    """
    spec = search.before.spec
    recompute: Changes = () if spec.training.gradient_checkpointing else ("spec.training.gradientCheckpointing=true",)
    fewer, recomputed = search.remedy(), search.remedy(*recompute) if recompute else None
    if fewer:
        yield fewer[1]
    if recomputed and (not fewer or recomputed[0] > fewer[0]):
        yield recomputed[1]
    if fewer or recomputed or search.before.device == "cpu":
        return
    if recompute and search.model(*recompute) is None:
        recompute = ()
    own = spec.model.quantization
    schemes = [f"spec.model.quantization={scheme}" for scheme in _SCHEMES[_SCHEMES.index(own) + 1 if own else 0 :]]
    shared = ("spec.model.sharding=Worker",) if spec.model.sharding == "Replicated" else ()
    gpus = [(f"spec.cluster.worker.gpus={count}", *shared) for count in _GPUS if count >= spec.cluster.worker.gpus]
    alone = [_first(search, recompute, [(scheme,) for scheme in schemes]), _first(search, recompute, gpus)]
    if any(alone):
        yield from filter(None, alone)
    elif schemes and (both := _first(search, (*recompute, schemes[-1]), gpus)):
        yield both


def _first(search: _Search, always: Changes, candidates: Iterable[Changes]) -> Changes | None:
    return next((found[1] for each in candidates if (found := search.remedy(*always, *each))), None)


def print_memory(memory: WorkerMemory) -> None:
    """Print the parts, the total, and whether it fits."""
    from tensorguard.cli.tables import print_facts

    records = "1 record" if memory.estimate.micro_batch == 1 else f"{memory.estimate.micro_batch:,} records"
    what = "a GPU" if memory.device == "cuda" else "a worker"
    print_facts([*_parts(memory), *_own(memory)], f"Memory of {what} ({memory.precision}, {records} at once)")
    if memory.available is not None:
        place = "on a GPU with" if memory.device == "cuda" else "in the worker's memory of"
        verb = "Fits" if memory.fits else "Does not fit"
        print(f"\n{verb} {place} {size_text(memory.available)}.")
    else:
        fitting = [f"{size} GB" for size in GPU_SIZES if memory.needed <= size * 10**9]
        none = f"Does not fit on a GPU of {GPU_SIZES[-1]} GB: {memory.advice()}"
        print(f"\nFits on GPUs of {', '.join(fitting)}." if fitting else f"\n{none}")


def print_frozen(memory: WorkerMemory, passes: float) -> None:
    """Print what a worker leaves out of its `passes` over the records, and what it keeps instead."""
    from tensorguard.cli.tables import print_facts

    if memory.left_out is None:
        return
    records = f"for {memory.spec.dataset.unit.at_least:,} units with one record of the greatest length"
    once = f"in all {passes:.3g} passes; one before the first step computes them"
    print()
    print_facts(
        [
            ("left out", memory.left_out.what, once),
            ("kept", size_text(memory.states), f"on the disk of each worker, {records}"),
        ],
        "Frozen layers",
    )


def _parts(memory: WorkerMemory) -> Iterator[Row]:
    estimate = memory.estimate
    kept = "the sum of clipped gradients" + (", noise and masks" if memory.device == "cpu" else "")
    yield "base model", size_text(estimate.weights), "frozen weights"
    yield (
        "adapter",
        size_text(estimate.adapter),
        f"{estimate.dimension:,} trained parameters, with two moments of AdamW",
    )
    yield "gradients", size_text(estimate.rows), "a row for each record"
    yield "sums", size_text(estimate.sum), kept
    if estimate.gathered_layers:
        yield "whole layers", size_text(estimate.gathered_layers), "of sharded weights, in a pass"
    yield "a pass", size_text(estimate.passes), "activations, loss and gradients, forward and backward"
    yield "clipping", size_text(estimate.clipping), "not at the same time as a pass"
    yield "update", size_text(estimate.update), "not at the same time as a pass"


def _own(memory: WorkerMemory) -> Iterator[Row]:
    yield "peak", size_text(memory.estimate.total), "of the parts above"
    if memory.device == "cpu":
        yield "process", size_text(PROCESS), "Python with PyTorch and Ray"
    else:
        yield "allocator", size_text(_allocator(memory.estimate)), f"about {100 * ALLOCATOR_SHARE:g} % of the peak"
        yield "CUDA context", size_text(CUDA_CONTEXT), "as on an H200"
    yield "needed", size_text(memory.needed), "on each GPU" if memory.device == "cuda" else "by each worker"


def size_text(size: int) -> str:
    """Bytes as 83.1 MiB or 1.24 GiB."""
    number, unit = (size / _GIB, "GiB") if size >= _GIB else (size / (1 << 20), "MiB")
    return f"{number:,.0f} {unit}" if number >= 1000 else f"{number:.3g} {unit}"
