"""The classification workloads on which TenSafe and Opacus are compared: their rows and the settings of a run.

SST-2 has 6,920 sentences with two classes, and in GLUE's form 67,349 phrases and sentences. E2E has 4,081 private
sentences on restaurants, and the class is the customer rating that the sentence expresses, one of six. All train MiniLM
(`minilm`), for six epochs of SST-2 and three of the others. Fewer than one record in a hundred is longer than
`max_length` tokens, and cut.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass, replace

from benchmarks import corpora


@dataclass(frozen=True)
class Workload:
    """One data set and the settings that both sides use, in the units of the manifest.

    ``private()`` reads the rows to train on, of which there are ``rows``, and ``test()`` those to measure accuracy on.
    """

    name: str
    private: Callable[[], corpora.Examples]
    test: Callable[[], corpora.Examples]
    rows: int
    num_labels: int
    steps: int
    expected_batch: int
    max_length: int
    learning_rate: float = 2e-2
    delta: float = 1e-5
    max_grad_norm: float = 1.0

    @property
    def sample_rate(self) -> float:
        """The probability that a row joins a step."""
        return self.expected_batch / self.rows

    @property
    def overrides(self) -> tuple[str, ...]:
        """The settings for ``tensafe_job.MANIFEST``, as ``--set`` of ``tensafe run`` takes them. The steps are the
        caller's.
        """
        return (
            f"spec.model.numLabels={self.num_labels}",
            f"spec.dataset.unit.atLeast={self.rows}",
            f"spec.training.expectedBatchSize={self.expected_batch}",
            f"spec.training.maxLength={self.max_length}",
            f'spec.training.learningRate="{self.learning_rate:g}"',
            f'spec.privacy.targetDelta="{self.delta:g}"',
            f'spec.privacy.maxGradNorm="{self.max_grad_norm:g}"',
        )

    @property
    def head(self) -> tuple[str, ...]:
        """Changes after ``overrides`` that train the head alone, with the default steps, batch and rate."""
        return "spec.lora={layers: []}", f"spec.training={{microBatchSize: 64, maxLength: {self.max_length}}}"

    def shortened(self, rows: int | None) -> Workload:
        """The workload with its first `rows` rows to train and to test on; itself without a number."""
        if rows is None:
            return self
        private, test = (lambda: self.private().first(rows)), (lambda: self.test().first(rows))
        return replace(self, private=private, test=test, rows=rows, expected_batch=min(rows, self.expected_batch))


SST2 = Workload(
    name="sst2",
    private=lambda: corpora.sst2("train"),
    test=lambda: corpora.sst2("test"),
    rows=6920,
    num_labels=2,
    steps=81,
    expected_batch=512,
    max_length=64,
)
GLUE = Workload(
    name="glue",
    private=lambda: corpora.glue_sst2("train"),
    test=lambda: corpora.glue_sst2("dev"),
    rows=67_349,
    num_labels=2,
    steps=99,
    expected_batch=2048,
    max_length=64,
)
E2E = Workload(
    name="e2e",
    private=lambda: corpora.e2e_ratings("devset"),
    test=lambda: corpora.e2e_ratings("testset_w_refs"),
    rows=4081,
    num_labels=len(corpora.RATINGS),
    steps=54,
    expected_batch=256,
    max_length=48,
)
WORKLOADS = {each.name: each for each in (SST2, GLUE, E2E)}
TARGET_EPSILON = 8.0


def add_data_option(parser: argparse.ArgumentParser) -> None:
    """Add ``--data``, the name of a workload."""
    parser.add_argument("--data", choices=sorted(WORKLOADS), default=SST2.name, help="the data set (default sst2)")
