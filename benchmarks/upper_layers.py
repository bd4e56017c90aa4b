"""A private step of a causal model whose upper quarter is trained: with and without states, and Opacus' hooks.

    .venv/bin/python -m benchmarks.upper_layers

A Llama with random weights and eight layers, of which the last two have LoRA factors, on 128 records of 128 tokens, in
one process with two threads and bf16. The variants take turns for a few rounds. A ratio compares two steps of one
round. With `--all` all layers are trained: then nothing is left out, and a step must not be slower.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from benchmarks.command import option_parser
from benchmarks.gpu.measure import Rounds, measure, spread
from benchmarks.gpu.setting import Setting, Size
from benchmarks.gpu.variants import PEERS, TASK, Step, Trained, Variant, private, shard, trained
from benchmarks.group import worker_group
from tensorguard.aggregation.channel import Channel
from tensorguard.data.batches import micro_batches
from tensorguard.models.frozen_prefix import StateRows, find_frozen_prefix
from tensorguard.models.self_test import dummy_batches

LAYERS = 8
SIZE = Size(
    words=8_000,
    width=512,
    inner_width=1376,
    layers=LAYERS,
    heads=8,
    key_value_heads=4,
    length=128,
    batch=128,
    rank=8,
    high_rank=8,
    adapted=tuple(range(3 * LAYERS // 4, LAYERS)),
)


@contextmanager
def _with_states(fills: list[float], setting: Setting, channel: Channel) -> Iterator[Step]:
    """The private step, with the states of what is frozen, if there is anything."""
    made, records = trained(setting, setting.size.rank), shard(setting)
    one = dummy_batches(TASK, made.form, rows=1, length=setting.size.length)(0)
    prefix = find_frozen_prefix(made.model, {name: each for name, each in one.items() if name != "labels"})
    if prefix is None:
        with private(setting, channel, made, records=records) as step:
            yield step.run
        return
    rows = StateRows(made.form, prefix, setting.device)
    with tempfile.TemporaryDirectory() as folder:
        begun = time.perf_counter()
        batches = micro_batches(records, range(len(records)), size=setting.micro_batch, form=made.form)
        for _ in rows.fill(records, batches, Path(folder)):
            pass
        fills.append(time.perf_counter() - begun)
    with private(setting, channel, Trained(made.model, made.loss, rows), records=records) as step:
        yield step.run


@contextmanager
def _whole(setting: Setting, channel: Channel) -> Iterator[Step]:
    with private(setting, channel) as step:
        yield step.run


def main() -> int:
    """Run the command line."""
    parser = option_parser("upper_layers", "A private step of a causal model whose upper quarter is trained.")
    parser.add_argument("--rounds", type=int, default=5, help="rounds, in which the variants take turns (default 5)")
    parser.add_argument("--steps", type=int, default=3, help="timed steps of a variant in each round (default 3)")
    parser.add_argument("--all", action="store_true", help="train all layers instead of the upper quarter")
    options = parser.parse_args()
    size = replace(SIZE, adapted=None) if options.all else SIZE
    setting = Setting(size, torch.device("cpu"), micro_batch=8, rounds=options.rounds, steps=options.steps)
    fills: list[float] = []
    variants: dict[str, Variant] = {"states": partial(_with_states, fills), "whole": _whole, "hooks": PEERS["hooks"]}
    found: dict[str, Rounds] = {name: Rounds([]) for name in variants}
    with tempfile.TemporaryDirectory() as meeting, worker_group(0, 1, Path(meeting) / "meet") as channel:
        torch.set_num_threads(2)
        for _ in range(setting.rounds):
            for name, variant in variants.items():
                found[name].found.append(measure(variant, setting, channel))
    for name, rounds in found.items():
        of_hooks, of_whole = spread(rounds.over(found["hooks"])), spread(rounds.over(found["whole"]))
        print(f"{name:8} {spread(rounds.seconds)} s, of hooks {of_hooks}, of whole {of_whole}", flush=True)
    if fills:
        steps = [fill / own for fill, own in zip(fills, found["states"].seconds)]
        print(f"computing the frozen layers once takes as long as {spread(steps, 2)} steps with states")
    return 0


if __name__ == "__main__":
    sys.exit(main())
