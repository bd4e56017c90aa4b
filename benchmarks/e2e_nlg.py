"""Learning rates of a causal language model: E2E's meaning representations to sentences, by TenSafe itself.

    .venv/bin/python -m benchmarks.e2e_nlg --rates 1e-3 5e-3 2e-2
    .venv/bin/python -m benchmarks.e2e_nlg --rates 5e-3 --runs 5 --test

The E2E corpus comes in. The loss on public pairs goes out, for each rate. No pretrained causal model is needed: a Llama
of four layers learns the language first, from half of the test set, which counts as public, with sentence and meaning
in the opposite order. The development set is the private data. The other half of the test set, whose meanings are in
neither, is the public evaluation set: its first 400 pairs to choose a rate on, and its last 400 to report (`--test`).
Draws and noise of TenSafe are secret, so runs of one rate differ.
"""

from __future__ import annotations

import itertools
import math
import sys
import tempfile
import time
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from benchmarks.command import option_parser
from benchmarks.corpora import CorpusMissing, e2e
from benchmarks.llama import llama
from tensorguard.distributed import DistributedDPConfig, TenSafeTrainer, TenSafeTrainingConfig

Pair = dict[str, str]
EPSILON, AT_LEAST, EVALUATED = 8.0, 4600, 400
VOCABULARY, WIDTH, LAYERS = 1500, 192, 4
PRETRAINING_STEPS, PRETRAINING_BATCH = 500, 32


def pairs(name: str) -> list[Pair]:
    """The pairs of `devset` or `testset_w_refs`: a prompt with the meaning, and the sentence.

    Raises:
        CorpusMissing: the file does not exist.
    """
    return [{"prompt": meaning + " ->", "completion": " " + sentence} for meaning, sentence in e2e(name)]


def split_by_meaning(found: list[Pair]) -> tuple[list[Pair], list[Pair]]:
    """Two halves that share no meaning."""
    meanings = sorted({pair["prompt"] for pair in found})
    first = set(meanings[: len(meanings) // 2])
    return [pair for pair in found if pair["prompt"] in first], [pair for pair in found if pair["prompt"] not in first]


def make_base(directory: Path, public: list[Pair]) -> None:
    """Train a tokenizer and a small Llama on `public`, without privacy, and save them in `directory`."""
    texts = [f"{pair['completion'].strip()} <- {pair['prompt'].removesuffix(' ->')}" for pair in public]
    bare = Tokenizer(models.BPE())
    bare.pre_tokenizer, bare.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    bare.train_from_iterator(
        texts,
        trainers.BpeTrainer(
            vocab_size=VOCABULARY, special_tokens=["</s>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
        ),
    )
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=bare, eos_token="</s>", pad_token="</s>")
    tokenizer.save_pretrained(directory)
    model = llama(
        words=len(tokenizer),
        positions=256,
        width=WIDTH,
        inner_width=3 * WIDTH,
        layers=LAYERS,
        heads=WIDTH // 32,
        tied=True,
        pad_token=0,
        end_token=0,
    )
    rows = [torch.tensor([*tokenizer(text)["input_ids"][:159], 0]) for text in texts]
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=PRETRAINING_STEPS, pct_start=0.1)
    for _ in range(PRETRAINING_STEPS):
        drawn = [rows[i] for i in torch.randint(len(rows), (PRETRAINING_BATCH,)).tolist()]
        ids = torch.nn.utils.rnn.pad_sequence(drawn, batch_first=True, padding_value=-100)
        model(input_ids=ids.clamp(min=0), attention_mask=(ids >= 0).long(), labels=ids).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
    model.save_pretrained(directory)


def main(arguments: list[str] | None = None) -> int:
    """Run the command line, which prints one line for each run. Where E2E is absent, nothing runs."""
    parser = option_parser("e2e_nlg", "Loss over learning rates on E2E, by TenSafe with a small Llama.")
    parser.add_argument("--rates", type=float, nargs="+", required=True, help="peak learning rates to try")
    parser.add_argument("--runs", type=int, default=1, help="runs for each rate (default %(default)s)")
    parser.add_argument("--test", action="store_true", help="measure on the pairs on which no rate was chosen")
    parser.add_argument("--epochs", type=int, default=3, help="epochs of a run (default %(default)s)")
    options = parser.parse_args(arguments)
    try:
        private, (public, evaluation) = pairs("devset"), split_by_meaning(pairs("testset_w_refs"))
    except CorpusMissing as missing:
        print(f"skipped: {missing}")
        return 0
    with tempfile.TemporaryDirectory() as scratch:
        started = time.perf_counter()
        make_base(Path(scratch) / "base", public)
        print(f"base model of {len(public)} public pairs ({time.perf_counter() - started:.0f} s)", flush=True)
        shown = evaluation[-EVALUATED:] if options.test else evaluation[:EVALUATED]
        for rate, run in itertools.product(options.rates, range(options.runs)):
            started = time.perf_counter()
            config = TenSafeTrainingConfig(
                model_name=str(Path(scratch) / "base"),
                num_epochs=options.epochs,
                per_device_batch_size=16,
                gradient_accumulation_steps=8,
                learning_rate=rate,
                warmup_ratio=0.1,
                lora_dropout=0.0,
                max_seq_length=160,
                num_workers=2,
                checkpoint_dir=Path(scratch) / f"{rate}-{run}",
                checkpoint_frequency=1000,  # evaluates at the end alone
                unit_at_least=AT_LEAST,
                dp_config=DistributedDPConfig(target_epsilon=EPSILON, target_delta=1e-5),
            )
            metrics = TenSafeTrainer(config).fit(private, shown).metrics
            loss = float(metrics["best_eval_loss"] or math.nan)
            elapsed = time.perf_counter() - started
            print(f"rate {rate:g}: loss {loss:.4f}, perplexity {math.exp(loss):.3f} ({elapsed:.0f} s)", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
