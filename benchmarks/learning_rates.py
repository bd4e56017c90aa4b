"""Accuracy over learning rates: how the defaults and the quickstart's rate were chosen.

The quickstart's job, or that of the SST-2 benchmark, comes in (noise, steps, batch, clip, adapter), changed by
``--set`` as for ``tensafe run``. The accuracy on public rows goes out, for each rate and seed: on the quickstart's
evaluation notes, or on SST-2's dev split. ``docs/choosing-hyperparameters.md`` quotes it. Opacus trains in one process,
so a sweep needs neither Ray nor a ledger.

The outputs of the layers below the adapter are computed once (``frozen_layers``).

    .venv/bin/python -m benchmarks.learning_rates --rates 5e-3 1e-2 2e-2 5e-2
    .venv/bin/python -m benchmarks.learning_rates --data sst2 --rates 2e-2 --set spec.training.expectedBatchSize=1024 \
      --set spec.training.steps=40
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from benchmarks import corpora, minilm, tensafe_job
from benchmarks.command import option_parser
from benchmarks.frozen_layers import frozen_outputs, numbered, use_cached_outputs
from benchmarks.peers.opacus_trainer import Settings, train
from tensafe_api.manifest.text import load_manifest
from tensafe_api.resolve import resolve_job
from tensafe_api.resources.job import Spec
from tensafe_api.resources.numeric import parse_decimal

EXAMPLE = corpora.ROOT / "examples" / "quickstart"


def _manifest(data: str) -> Path | str:
    return EXAMPLE / "job.yaml" if data == "quickstart" else tensafe_job.MANIFEST


def _examples(data: str, spec: Spec) -> tuple[corpora.Examples, corpora.Examples]:
    """The rows to train on, and public ones."""
    if data == "sst2":
        return corpora.sst2("train"), corpora.sst2("dev")
    assert spec.evaluation is not None, "the quickstart's job has an evaluation"
    names = spec.model.label_names
    return corpora.jsonl(EXAMPLE / spec.dataset.uri, names), corpora.jsonl(EXAMPLE / spec.evaluation.uri, names)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line, which prints one line for each rate and seed."""
    parser = option_parser("learning_rates", "Accuracy over learning rates, by Opacus.")
    parser.add_argument(
        "--data", choices=("quickstart", "sst2"), default="quickstart", help="the data set (default %(default)s)"
    )
    parser.add_argument("--rates", type=float, nargs="+", required=True, help="peak learning rates to try")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1], help="seeds of the runs (default 1)")
    parser.add_argument(
        "--set",
        dest="overrides",
        action="append",
        default=[],
        metavar="PATH=VALUE",
        help="change the job, as `tensafe run --set` does",
    )
    parser.add_argument("--threads", type=int, default=2, help="CPU threads (default 2)")
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)

    try:
        job, plan = resolve_job(load_manifest(_manifest(options.data), options.overrides))
        train_examples, eval_examples = _examples(options.data, job.spec)
    except corpora.CorpusMissing as missing:
        print(f"skipped: {missing}")
        return 0
    spec = job.spec
    if spec.training.schedule != "Linear":
        parser.error("spec.training.schedule: only Linear is supported here: set it to Linear")
    assert spec.lora.alpha is not None and spec.training.max_length is not None, "both jobs resolve to both"
    tokenizer = minilm.load_tokenizer()
    train_rows, eval_rows = (
        corpora.tokens(examples, tokenizer, spec.training.max_length) for examples in (train_examples, eval_examples)
    )
    labels = spec.model.num_labels
    assert labels is not None, "both jobs classify"
    adapter = minilm.Adapter(
        spec.lora.rank, int(spec.lora.alpha), spec.lora.layers or (), train_a=spec.lora.variant == "Standard"
    )
    frozen = min(adapter.layers)
    hidden = frozen_outputs([train_rows, eval_rows], frozen)
    settings = Settings(
        noise_multiplier=float(plan.mechanism.noise_multiplier),
        sample_rate=float(plan.mechanism.sample_rate),
        steps=plan.steps,
        expected_batch=plan.mechanism.expected_batch_size,
        learning_rate=0.0,
        max_grad_norm=float(plan.mechanism.clip),
        weight_decay=parse_decimal(spec.training.weight_decay),
        warmup_ratio=parse_decimal(spec.training.warmup_ratio),
    )
    print(f"{settings.steps} steps of {settings.expected_batch}, sigma {settings.noise_multiplier}")
    for rate in options.rates:
        for seed in options.seeds:
            model = minilm.load_model(adapter, labels, seed)
            use_cached_outputs(model, hidden, frozen)
            train(model, numbered(train_rows, 0), replace(settings, learning_rate=rate), seed)
            accuracy = minilm.accuracy(model, numbered(eval_rows, len(train_rows)))
            print(f"rate {rate:g} seed {seed}: accuracy {accuracy:.4f}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
