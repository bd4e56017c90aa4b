"""What a private step costs on a GPU, as text and JSON: exactness, time, memory, noise and masks, and the peers.

    .venv/bin/python -m benchmarks.gpu [--micro-batch 8 16]      (`make gpu`)

It needs torch, transformers, peft, and this project with its libraries, but not Ray, and no download: the model is of
Llama's shape with 1.1 billion random weights in bf16, with LoRA factors of rank 16 on all linear layers, and records of
512 tokens. The exit status is 1 if a goal is missed. Where there is no GPU, it prints that and exits with status 0.

`--device cpu` runs the same code on a tiny model, and `--short` uses the tiny model on a GPU: the figures then mean
nothing, and no goal is checked.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from transformers.utils import logging

from benchmarks.command import option_parser
from benchmarks.gpu import correctness, fit, measure
from benchmarks.gpu.measure import Ahead, Rounds, spread
from benchmarks.gpu.setting import FULL, GIB, MIB, PRECISION, TINY, Setting
from benchmarks.gpu.variants import OWN, PEERS, trained
from benchmarks.group import worker_group
from benchmarks.peers.causal import has_fastdp
from tensorguard.aggregation.channel import Channel
from tensorguard.models.bit_equality import use_deterministic_kernels
from tensorguard.models.self_test import SelfTestError

TIME_GOAL, MEMORY_MARGIN, AHEAD_GOAL = 1.05, 0.10, 1.05
AT_ONCE = [1, 2, 4, 8, 16, 32]
PARTS = ("exactness", "steps", "noise", "memory")


@dataclass(frozen=True)
class Goal:
    """A figure, and the largest value that it may have."""

    name: str
    value: float
    limit: float

    @property
    def met(self) -> bool:
        return self.value <= self.limit

    def __str__(self) -> str:
        return f"{self.name}: {self.value:,.3f}, goal <= {self.limit:,.3f}: {'met' if self.met else 'MISSED'}"


def describe(device: torch.device) -> dict[str, str]:
    """What the figures depend on: device, driver and versions."""
    found = {"device": platform.processor() or platform.machine(), "torch": torch.__version__}
    if device.type == "cuda":
        asked = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        try:
            driver = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.splitlines()[0]
        except (OSError, subprocess.CalledProcessError, IndexError):
            driver = "unknown"
        found |= {
            "device": torch.cuda.get_device_name(device),
            "gpus": str(torch.cuda.device_count()),
            "driver": driver,
            "cuda": str(torch.version.cuda),
            "nccl": ".".join(map(str, torch.cuda.nccl.version())),
        }
    return found


def report_exactness(setting: Setting) -> list[dict[str, Any]]:
    """Print the self-test of each number of records at once."""
    print(f"\nBit-equality and neighbour test, {PRECISION}, records of {setting.size.length} tokens:")
    print("| at once | change by slot and neighbours | sum, against an ordinary gradient | time of a record |")
    print("|---|---|---|---|")
    found = []
    for each in correctness.exactness(setting, AT_ONCE if setting.full else AT_ONCE[:3]):
        found.append(asdict(each))
        change, off = ("refused" if value is None else f"{value:.1g}" for value in (each.change, each.sum_error))
        print(f"| {each.rows} | {change} | {off} | {each.milliseconds:.2f} ms |", flush=True)
    return found


def report_steps(setting: Setting, channel: Channel, goals: list[Goal]) -> dict[str, Any]:
    """Print time, memory and tokens of all variants with one micro-batch."""
    size, asked = setting.size, setting.micro_batch
    exact = correctness.exact_micro_batch(setting)
    note = "" if exact == asked else f"; private computes {exact}, because {asked} are not exact on this device"
    print(f"\nA step of {size.batch} records of {size.length} tokens, {asked} at once{note}, {setting.rounds} rounds:")
    failed = {} if has_fastdp() else {"fastdp": "not installed"}
    found = _rounds(setting, exact, channel, failed)
    print("| variant | seconds (range) | x plain (range) | tokens per second | peak MiB |")
    print("|---|---|---|---|---|")
    for name, rounds in found.items():
        rate = size.batch * size.length / statistics.median(rounds.seconds)
        ratio = spread(rounds.over(found["plain"]))
        print(f"| {name} | {spread(rounds.seconds)} | {ratio} | {rate:,.0f} | {rounds.peak / MIB:,.0f} |", flush=True)
    for name, why in failed.items():
        print(f"{name}: {why}")
    goals += _step_goals(found, exact, _dimension(setting))
    return {
        "micro_batch": asked,
        "exact": exact,
        "failed": failed,
        "variants": {name: {"seconds": rounds.seconds, "peak": rounds.peak} for name, rounds in found.items()},
    }


def _rounds(setting: Setting, exact: int, channel: Channel, failed: dict[str, str]) -> dict[str, Rounds]:
    """All variants; the private one with `exact` records at once, the others with as many as were asked for."""
    ours = {**OWN, "private": lambda given, group: OWN["private"](given.at(exact), group)}
    found = measure.interleaved({**ours, **PEERS}, setting, channel, failed)
    if missing := OWN.keys() - found.keys():
        raise RuntimeError(f"{missing.pop()} failed: {failed}")
    return found


def _step_goals(found: dict[str, Rounds], rows: int, dimension: int) -> list[Goal]:
    plain, own = found["plain"], found["private"]
    bound = (plain.peak + 4 * rows * dimension) * (1 + MEMORY_MARGIN)
    return [
        Goal("step, private over plain", statistics.median(own.over(plain)), TIME_GOAL),
        Goal(f"peak MiB of private, bound (plain + {rows} x d x 4 B) + 10 %", own.peak / MIB, bound / MIB),
    ]


def _dimension(setting: Setting) -> int:
    return sum(parameter.numel() for _, parameter in trained(setting, setting.size.rank).parameters)


def report_ahead(setting: Setting, channel: Channel, goals: list[Goal]) -> dict[str, Any]:
    """Print whether noise and masks hide behind the compute of a step."""
    exact = setting.at(correctness.exact_micro_batch(setting))
    found: Ahead = measure.measure_ahead(exact, channel)
    print(
        f"\nNoise and masks of {found.dimension:,} numbers on the CPU, in one thread: {found.noise:.3f} s and "
        f"{found.masks:.3f} s (32 neighbours).\nA step with them {spread(found.with_both)} s, without "
        f"{spread(found.without)} s."
    )
    goals.append(Goal("step, with noise and masks over without", found.ratio, AHEAD_GOAL))
    return asdict(found)


def report_fits(setting: Setting, channel: Channel, goals: list[Goal]) -> list[dict[str, Any]]:
    """Print the memory of each model beside the estimate of `tensafe plan`."""
    cases = fit.CASES if setting.full else (fit.Case("tiny", TINY, 2),)
    print("\nMemory in GiB, in the self-test and two steps:")
    print(
        "| model | at once | estimate | allocated | estimate / allocated | reserved | taken from the GPU | bit-equal |"
    )
    print("|---|---|---|---|---|---|---|---|")
    found = []
    for each in fit.fits(cases, setting, channel):
        found.append(asdict(each))
        sizes = [f"{size / GIB:.2f}" for size in (each.estimate, each.allocated, each.reserved, each.taken)]
        columns = [each.name, str(each.micro_batch), *sizes[:2], f"{each.ratio:.3f}", *sizes[2:]]
        print(f"| {' | '.join(columns)} | {'yes' if each.exact else 'no'} |", flush=True)
        goals.append(Goal(f"memory of {each.name}, estimate off by", abs(each.ratio - 1), MEMORY_MARGIN))
    return found


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = option_parser("gpu", "What a private step costs on a GPU.")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: a tiny model, to try the code")
    parser.add_argument("--short", action="store_true", help="a tiny model and one round: the figures mean nothing")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS, help="what to measure (default: all)")
    parser.add_argument("--micro-batch", type=int, nargs="+", default=[32], help="records at once (default 32)")
    parser.add_argument(
        "--rounds", type=int, default=5, help="rounds, in which the variants take turns (default %(default)s)"
    )
    parser.add_argument("--steps", type=int, default=3, help="timed steps of a variant in each round (default 3)")
    parser.add_argument("--json", type=Path, default=Path("out/gpu.json"), help="file of all figures")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    options = parse(arguments)
    if options.device == "cuda" and not torch.cuda.is_available():
        print("PyTorch finds no GPU on this machine, so nothing was measured (--device cpu tries the code).")
        return 0
    logging.set_verbosity_error()
    use_deterministic_kernels()
    device = torch.device("cuda", 0) if options.device == "cuda" else torch.device("cpu")
    small = options.short or device.type == "cpu"
    rounds, steps = (1, 1) if options.short else (options.rounds, options.steps)
    sizes = [min(each, TINY.batch) if small else each for each in options.micro_batch]
    setting = Setting(TINY if small else FULL, device, sizes[0], rounds, steps)
    found: dict[str, Any] = {"machine": describe(device), "full": setting.full}
    print(", ".join(f"{name} {value}" for name, value in found["machine"].items()))
    goals: list[Goal] = []
    found["wrapping"] = correctness.check_wrapping(device)
    print(found["wrapping"])
    if "exactness" in options.parts:
        found["exactness"] = report_exactness(setting)
    try:
        with tempfile.TemporaryDirectory() as scratch, worker_group(0, 1, Path(scratch) / "meet", device) as channel:
            if "steps" in options.parts:
                found["steps"] = [report_steps(setting.at(each), channel, goals) for each in sizes]
            if "noise" in options.parts:
                found["ahead"] = report_ahead(setting, channel, goals)
            if "memory" in options.parts:
                found["fits"] = report_fits(setting, channel, goals)
    except SelfTestError as error:
        print(f"\nA run would be refused on this device: {error}")
        return 1
    print("\n" + "\n".join(map(str, goals)) if setting.full else "\nNo goal is checked: the model is tiny.")
    found["goals"] = [{**asdict(goal), "met": goal.met} for goal in goals]
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps(found, indent=1) + "\n")
    return int(setting.full and not all(goal.met for goal in goals))


if __name__ == "__main__":
    sys.exit(main())
