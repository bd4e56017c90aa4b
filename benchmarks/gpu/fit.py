"""The memory of a private step on a GPU, beside the memory that `tensafe plan` estimates for it."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from benchmarks.gpu.setting import FULL, LARGE, PRECISION, Setting, Size, peak_memory
from benchmarks.gpu.variants import Trained, private, trained
from tensafe_api.manifest.text import load_manifest
from tensorguard.aggregation.channel import Channel
from tensorguard.models.memory import Device, MemoryModel
from tensorguard.models.self_test import SelfTestError
from tensorguard.models.source import resolve_model
from tests.support.trainer.rank_harness import CAUSAL_MANIFEST, make_tokenizer


@dataclass(frozen=True)
class Case:
    """A model, and the records of a micro-batch."""

    name: str
    size: Size
    micro_batch: int


_SMALL = replace(FULL, batch=16)
CASES = (
    Case("1.1B", _SMALL, 8),
    Case("1.1B, INT8", replace(_SMALL, quantization="INT8"), 8),
    Case("1.1B, NF4", replace(_SMALL, quantization="NF4"), 8),
    Case("7.6B", LARGE, 4),
    Case("7.6B, layers recomputed", replace(LARGE, checkpointing=True), 4),
    Case("7.6B, INT8", replace(LARGE, quantization="INT8"), 4),
    Case("7.6B, NF4", replace(LARGE, quantization="NF4"), 4),
    Case("7.6B, NF4, layers recomputed", replace(LARGE, quantization="NF4", checkpointing=True), 4),
)


@dataclass(frozen=True)
class Fit:
    """The memory of one case, in bytes.

    Attributes:
        estimate: of the tensors, by `tensafe plan`.
        allocated: largest sum of all tensors, in the self-test and two steps.
        reserved: what PyTorch's allocator had taken from the device at its peak.
        taken: what the process had taken from the device at the end, with CUDA's own memory. 0 on a CPU.
        exact: whether so many records at once have bit-equal gradients. A run would use fewer if not.
    """

    name: str
    micro_batch: int
    estimate: int
    allocated: int
    reserved: int
    taken: int
    exact: bool

    @property
    def ratio(self) -> float:
        """The estimate over what was allocated."""
        return self.estimate / self.allocated


def fits(cases: tuple[Case, ...], setting: Setting, channel: Channel) -> Iterator[Fit]:
    """Measure each case, one after the other."""
    for case in cases:
        yield _fit(case, replace(setting, size=case.size, micro_batch=case.micro_batch), channel)


def _fit(case: Case, setting: Setting, channel: Channel) -> Fit:
    made = trained(setting, case.size.rank)  # quantised on the device here, which a run does on its host
    peaks: list[int] = []
    exact = True
    with peak_memory(setting.device, peaks):
        try:
            _take_steps(setting, channel, made, tested=True)
        except SelfTestError:
            exact = False
            _take_steps(setting, channel, made, tested=False)
        reserved, taken = _reserved_and_taken(setting.device)
    return Fit(case.name, case.micro_batch, estimate(case, setting.device), peaks[0], reserved, taken, exact)


def _take_steps(setting: Setting, channel: Channel, made: Trained, *, tested: bool) -> None:
    with private(setting, channel, made, tested=tested) as step:
        step.run(0)
        step.run(1)


def _reserved_and_taken(device: torch.device) -> tuple[int, int]:
    if device.type != "cuda":
        return 0, 0
    free, total = torch.cuda.mem_get_info(device)
    return torch.cuda.max_memory_reserved(device), total - free


def estimate(case: Case, device: torch.device) -> int:
    """The bytes of all tensors at their peak, as `tensafe plan` estimates them for a job with this model."""
    size = case.size
    with tempfile.TemporaryDirectory() as folder:
        make_tokenizer(Path(folder))
        size.model(torch.device("meta")).config.save_pretrained(folder)
        overrides = [
            f"spec.training.maxLength={size.length}",
            f"spec.training.gradientCheckpointing={str(size.checkpointing).lower()}",
            f"spec.training.precision={PRECISION}",
            f"spec.lora.rank={size.rank}",
            'spec.lora.dropout="0"',
            "spec.lora.targetModules=[all-linear]",
            "spec.cluster.workers=1",
            *([f"spec.model.quantization={size.quantization}"] if size.quantization else []),
        ]
        spec = load_manifest(CAUSAL_MANIFEST.replace("MODEL", folder).replace("CHECKPOINTS", folder), overrides).spec
        kind: Device = "cuda" if device.type == "cuda" else "cpu"
        return MemoryModel(spec, resolve_model(folder), kind, PRECISION).estimate(case.micro_batch).total
