"""A job's step by its parts: CPU time of each part in one worker, and the time of the whole step.

In: a number of workers and a LoRA rank. Out: `StepCost`. The ranks are processes of this machine with gloo between
them, and run the whole trainer on a Llama of random weights. The batch of a step is the same for every number of
workers, so each of N workers computes 1/N of the gradients.

More workers than cores take turns, so the time of a step on this machine is not that of a cluster. CPU time hardly
depends on who else waits for a core. The instrument reads the CPU clocks of the thread and of the process.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.llama import llama
from tensorguard.aggregation.pairwise_masks import PairwiseMasks
from tensorguard.models.load import prepare_base
from tensorguard.models.lora import attach_lora, trainable_parameters
from tensorguard.models.tasks import task_named
from tensorguard.privacy.noise import DiscreteGaussian
from tensorguard.training.step import PrivateStep
from tensorguard.training.unit_gradients import ShardGradients
from tests.support.trainer.fault_injection import replace_attribute
from tests.support.trainer.rank_harness import CAUSAL_MANIFEST, Job, JobKind, make_tokenizer, records

BATCH, LENGTH, MICRO_BATCH = 64, 32, 4
WIDTH, LAYERS = 256, 4
PARTS = ("gradients", "noise", "masks", "rest")
_TIMED = {
    "gradients": (ShardGradients, "add_to"),
    "noise": (DiscreteGaussian, "draw"),
    "masks": (PairwiseMasks, "prepare"),
}


@dataclass(frozen=True)
class StepCost:
    """One step of a job: medians over the steps, and for the parts also the mean over the workers.

    Attributes:
        dimension: the number of trained numbers.
        milliseconds: CPU time of one worker by part. `rest`: sum, verification, optimiser, ledger and log.
        wall: milliseconds from one step to the next on this machine.
    """

    workers: int
    dimension: int
    milliseconds: dict[str, float]
    wall: float

    @property
    def added(self) -> float:
        """CPU time of one worker for all but its gradients, in milliseconds."""
        return sum(self.milliseconds[part] for part in PARTS if part != "gradients")


@dataclass(frozen=True)
class StepClocks:
    """An instrument that reads the clocks once in each step and keeps them in `clocks-RANK.jsonl`.

    It reads them where the background thread has made noise and masks, and has not begun with those of the next step.
    So each reading counts whole steps.
    """

    def install(self, rank: int, directory: Path) -> None:
        spent: dict[str, float] = defaultdict(float)
        for part, (owner, name) in _TIMED.items():
            replace_attribute(owner, name, _timed(getattr(owner, name), spent, part))
        prepare, file = PrivateStep._prepare, directory / f"clocks-{rank}.jsonl"

        def recording(step: PrivateStep, number: int) -> None:
            now = {"wall": time.perf_counter(), "all": time.process_time(), **{part: spent[part] for part in _TIMED}}
            with file.open("a") as out:
                out.write(json.dumps(now) + "\n")
            prepare(step, number)

        replace_attribute(PrivateStep, "_prepare", recording)


def _timed(call: Callable[..., Any], spent: dict[str, float], part: str) -> Callable[..., Any]:
    """`call`, which adds the CPU time of its thread to `spent`."""

    def timed(*args: Any, **kwargs: Any) -> Any:
        started = time.thread_time()
        try:
            return call(*args, **kwargs)
        finally:
            spent[part] += time.thread_time() - started

    return timed


def measure(workers: int, rank: int, steps: int) -> StepCost:
    """Train `steps` + 2 steps with LoRA factors of `rank`. The first two are not measured."""
    with tempfile.TemporaryDirectory() as scratch:
        job = Job.make(
            Path(scratch),
            f"spec.cluster.workers={workers}",
            f"spec.dataset.unit.atLeast={BATCH}",
            f"spec.training.expectedBatchSize={BATCH}",
            f"spec.training.microBatchSize={MICRO_BATCH}",
            f"spec.training.maxLength={LENGTH}",
            f"spec.training.steps={steps + 2}",
            f"spec.lora.rank={rank}",
            "spec.lora.targetModules=[all-linear]",
            "spec.privacy.noiseMultiplier=0.83",
            "spec.privacy.targetEpsilon=1e9",
            "spec.checkpoint.everySteps=1000000",
            kind=KIND,
        )
        codes = job.run(StepClocks())
        if any(codes):
            raise RuntimeError(f"a worker of {workers} failed: {job.errors()[-2000:]}")
        return StepCost(
            workers, dimension(rank), *_medians([_differences(job.directory, each) for each in range(workers)])
        )


def _differences(directory: Path, rank: int) -> dict[str, list[float]]:
    """Milliseconds of each measured step by clock. The first reading is before the first step, the second within it."""
    lines = [json.loads(line) for line in (directory / f"clocks-{rank}.jsonl").read_text().splitlines()][2:]
    return {clock: [1e3 * (after[clock] - before[clock]) for before, after in pairwise(lines)] for clock in lines[0]}


def _medians(ranks: list[dict[str, list[float]]]) -> tuple[dict[str, float], float]:
    """CPU time by part, and the time of a step."""
    found = {clock: statistics.fmean(statistics.median(rank[clock]) for rank in ranks) for clock in ranks[0]}
    parts = {part: found[part] for part in _TIMED}
    return {**parts, "rest": found["all"] - sum(parts.values())}, statistics.median(ranks[0]["wall"])


def _make_model(directory: Path) -> None:
    llama(
        words=make_tokenizer(directory),
        positions=LENGTH,
        width=WIDTH,
        inner_width=2 * WIDTH,
        layers=LAYERS,
        heads=4,
    ).save_pretrained(directory)


def _rows(_count: int) -> list[dict[str, Any]]:
    """As many records as a batch has, of 16 to 32 tokens."""
    texts = [record["text"] for record in records(BATCH)]
    return [{"prompt": " ".join([text] * 3), "completion": " ".join(text.split()[:4] * 2)} for text in texts]


KIND = JobKind(CAUSAL_MANIFEST, _make_model, _rows)


def dimension(rank: int) -> int:
    """The number of trained numbers with LoRA factors of `rank`."""
    model = llama(words=8, positions=LENGTH, width=WIDTH, inner_width=2 * WIDTH, layers=LAYERS, heads=4)
    base = prepare_base(model, task_named("CausalLM"), pad_token_id=0)
    tuned = attach_lora(base, rank=rank, alpha=1, dropout=0.0, init_seed=0, target_modules=["all-linear"])
    return sum(parameter.numel() for _, parameter in trainable_parameters(tuned))
