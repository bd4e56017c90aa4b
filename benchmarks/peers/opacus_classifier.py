"""SST-2 or E2E by Opacus: the test accuracy that one process with ``PrivacyEngine`` reaches at an epsilon.

The noise multiplier is the one that Opacus finds with its default accountant, PRV. One accuracy for each seed goes out.
``benchmarks/accuracy.py`` compares them with TenSafe's. Opacus has no learning rate: its user takes the optimiser's, or
searches one. So there are two peers, one with TenSafe's rate and schedule, and one with PyTorch's default and none. To
run this module alone:

    .venv/bin/python -m benchmarks.peers.opacus_classifier --epsilon 3
    .venv/bin/python -m benchmarks.peers.opacus_classifier --epsilon 3 --defaults
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace

import torch
from opacus.accountants.utils import get_noise_multiplier

from benchmarks import corpora, minilm
from benchmarks.classification import TARGET_EPSILON, WORKLOADS, Workload, add_data_option
from benchmarks.command import option_parser
from benchmarks.frozen_layers import frozen_outputs, numbered, use_cached_outputs
from benchmarks.peers.opacus_trainer import Settings, train

DEFAULT_RATE = float(torch.optim.AdamW([torch.zeros(1)]).defaults["lr"])
"""AdamW's own learning rate, 1e-3."""


def noise_multiplier(workload: Workload, epsilon: float, steps: int) -> float:
    """The sigma of ``make_private_with_epsilon``, in clip norms, for ``steps`` Poisson steps of the workload."""
    return float(
        get_noise_multiplier(
            target_epsilon=epsilon,
            target_delta=workload.delta,
            sample_rate=workload.sample_rate,
            steps=steps,
            accountant="prv",
        )
    )


def accuracies(
    workload: Workload, epsilon: float, seeds: Iterable[int], steps: int, *, defaults: bool = False
) -> Iterator[float]:
    """Yields the test accuracy of one training run for each seed.

    Args:
        epsilon: what all steps spend, by Opacus' accountant.
        seeds: each fixes the initial values of classifier and LoRA factors, the draws and the noise.
        defaults: train at AdamW's own learning rate, without a schedule.

    Raises:
        corpora.CorpusMissing: the data set is not on this machine.
    """
    tokenizer = minilm.load_tokenizer()
    train_rows = corpora.tokens(workload.private(), tokenizer, workload.max_length)
    test_rows = corpora.tokens(workload.test(), tokenizer, workload.max_length)
    settings = Settings(
        noise_multiplier=noise_multiplier(workload, epsilon, steps),
        sample_rate=workload.sample_rate,
        steps=steps,
        expected_batch=workload.expected_batch,
        learning_rate=DEFAULT_RATE if defaults else workload.learning_rate,
        constant_rate=defaults,
        max_grad_norm=workload.max_grad_norm,
    )
    adapter = minilm.Adapter()
    frozen = min(adapter.layers)
    hidden = frozen_outputs([train_rows, test_rows], frozen)
    for seed in seeds:
        model = minilm.load_model(adapter, workload.num_labels, seed)
        use_cached_outputs(model, hidden, frozen)
        train(model, numbered(train_rows, 0), settings, seed)
        yield minilm.accuracy(model, numbered(test_rows, len(train_rows)))


def main() -> int:
    """Run the command line. The exit status is 0, and nothing runs, where the data are absent."""
    parser = option_parser("peers.opacus_classifier", "Test accuracy by Opacus' PrivacyEngine.")
    add_data_option(parser)
    parser.add_argument("--epsilon", type=float, default=TARGET_EPSILON, help="the ε to keep (default %(default)g)")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3], help="seeds of the runs (default 1 2 3)")
    parser.add_argument("--learning-rate", type=float, help="AdamW's rate at the peak (default: the workload's)")
    parser.add_argument("--defaults", action="store_true", help="AdamW's own learning rate, and no schedule")
    parser.add_argument("--threads", type=int, default=2, help="CPU threads (default 2)")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    workload = WORKLOADS[options.data]
    if options.learning_rate is not None:
        workload = replace(workload, learning_rate=options.learning_rate)
    started = time.perf_counter()
    found = []
    try:
        for accuracy in accuracies(workload, options.epsilon, options.seeds, workload.steps, defaults=options.defaults):
            found.append(accuracy)
            elapsed = time.perf_counter() - started
            seed = options.seeds[len(found) - 1]
            print(f"opacus {workload.name} seed {seed}: accuracy {accuracy:.4f} ({elapsed:.0f} s)", flush=True)
    except corpora.CorpusMissing as missing:
        print(f"skipped: {missing}")
        return 0
    print(f"opacus {workload.name} mean of {len(found)}: {sum(found) / len(found):.4f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
