"""SST-2 by Opacus: the test accuracy that one process with ``PrivacyEngine`` reaches at an epsilon.

The noise multiplier is the one that Opacus finds with its default accountant, PRV. One accuracy for each seed goes out.
``benchmarks/accuracy.py`` compares them with TenSafe's. To run this module alone:

    .venv/bin/python -m benchmarks.peers.opacus_sst2 --epsilon 3
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterable, Iterator

import torch
from opacus.accountants.utils import get_noise_multiplier

from benchmarks import corpora, minilm
from benchmarks.peers.opacus_trainer import Settings, train

STEPS = 81
EXPECTED_BATCH = 512
MAX_LENGTH = 32
LEARNING_RATE = 2e-2
TARGET_EPSILON = 8.0
DELTA = 1e-5
MAX_GRAD_NORM = 1.0
NUM_LABELS = 2


def noise_multiplier(epsilon: float, steps: int = STEPS) -> float:
    """The sigma of ``make_private_with_epsilon``, in clip norms, for ``steps`` Poisson steps of 512/6920."""
    rate = EXPECTED_BATCH / len(corpora.sst2("train"))
    return float(
        get_noise_multiplier(
            target_epsilon=epsilon, target_delta=DELTA, sample_rate=rate, steps=steps, accountant="prv"
        )
    )


def accuracies(
    epsilon: float, seeds: Iterable[int], learning_rate: float = LEARNING_RATE, steps: int = STEPS
) -> Iterator[float]:
    """Yields the test accuracy of one training run for each seed.

    Args:
        epsilon: what all steps spend, by Opacus' accountant.
        seeds: each fixes the initial values of classifier and LoRA factors, the draws and the noise.
        learning_rate: AdamW's rate at the peak of the schedule.

    Raises:
        corpora.CorpusMissing: SST-2 is not on this machine.
    """
    tokenizer = minilm.load_tokenizer()
    train_rows = corpora.tokens(corpora.sst2("train"), tokenizer, MAX_LENGTH)
    test_rows = corpora.tokens(corpora.sst2("test"), tokenizer, MAX_LENGTH)
    settings = Settings(
        noise_multiplier=noise_multiplier(epsilon, steps),
        sample_rate=EXPECTED_BATCH / len(train_rows),
        steps=steps,
        expected_batch=EXPECTED_BATCH,
        learning_rate=learning_rate,
        max_grad_norm=MAX_GRAD_NORM,
    )
    for seed in seeds:
        model = minilm.load_model(minilm.Adapter(), NUM_LABELS, seed)
        train(model, train_rows, settings, seed)
        yield minilm.accuracy(model, test_rows)


def main() -> int:
    """Run the command line. The exit status is 0, and nothing runs, where SST-2 is absent."""
    parser = argparse.ArgumentParser(description="Test accuracy on SST-2 by Opacus' PrivacyEngine.")
    parser.add_argument("--epsilon", type=float, default=TARGET_EPSILON)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--learning-rate", type=float, default=LEARNING_RATE)
    parser.add_argument("--threads", type=int, default=2, help="CPU threads (default 2)")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    started = time.perf_counter()
    found = []
    try:
        for accuracy in accuracies(options.epsilon, options.seeds, options.learning_rate):
            found.append(accuracy)
            elapsed = time.perf_counter() - started
            print(f"opacus sst2 seed {options.seeds[len(found) - 1]}: accuracy {accuracy:.4f} ({elapsed:.0f} s)")
    except corpora.CorpusMissing as missing:
        print(f"skipped: {missing}")
        return 0
    print(f"opacus sst2 mean of {len(found)}: {sum(found) / len(found):.4f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
