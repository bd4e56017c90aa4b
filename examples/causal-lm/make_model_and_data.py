"""Makes the model and the data of the causal-lm example: a small Llama, and rows of prompt and completion.

In: a seed. Out: ``model/`` (about a million weights, pretrained on public rows, with a tokenizer trained on the same
rows), ``data/train.jsonl`` and ``data/eval.jsonl``. ``job.yaml`` beside this file fine-tunes the model on the data.

The task is that of the E2E challenge: the prompt has the attributes of a place, the completion is a sentence about it.
The public rows for pretraining are written like a guide book, and one of thirty like a diary. All private rows are
written like a diary: the model learns this style privately.
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from random import Random

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

END, PAD = "<end>", "<pad>"
VOCABULARY = 1024
PUBLIC_ROWS = 6000
PRIVATE_ROWS, EVALUATION_ROWS = 3200, 320
PRETRAINING_STEPS, PRETRAINING_BATCH, PRETRAINING_LENGTH = 200, 16, 96

DIARY_SHARE = 1 / 30

WORDS = ("Blue", "Old", "Golden", "Quiet", "Copper", "Green", "Little", "Stone", "Silver", "Hidden", "Amber", "Twin")
THINGS = ("Kettle", "Anchor", "Oak", "Lantern", "Mill", "Fox", "Bridge", "Heron", "Spoon", "Orchard", "Swan", "Barrel")
KINDS = ("pub", "restaurant", "coffee shop", "bakery")
FOODS = ("Italian", "French", "Indian", "Chinese", "English", "Japanese")
PRICES = ("cheap", "moderate", "high")
RATINGS = ("one star", "three stars", "five stars")
AREAS = ("river quarter", "city centre", "old town", "station quarter")

Place = dict[str, str]


def invent_place(random: Random) -> Place:
    """A place with a name, a kind, and two to four more attributes, in a fixed order."""
    place = {"name": f"The {random.choice(WORDS)} {random.choice(THINGS)}", "kind": random.choice(KINDS)}
    further = {
        "food": random.choice(FOODS),
        "price": random.choice(PRICES),
        "rating": random.choice(RATINGS),
        "area": random.choice(AREAS),
        "families": random.choice(("yes", "no")),
    }
    chosen = set(random.sample(sorted(further), random.randint(2, 4)))
    return place | {attribute: value for attribute, value in further.items() if attribute in chosen}


def what_and_where(place: Place) -> str:
    """Such as ``an Italian pub in the old town``."""
    food = f"{place['food']} " if "food" in place else ""
    article = "an" if (food or place["kind"])[0] in "AEIOU" else "a"
    where = f" in the {place['area']}" if "area" in place else ""
    return f"{article} {food}{place['kind']}{where}"


def guide_book(random: Random, place: Place) -> str:
    """One or two sentences about the attributes of ``place``, in a random style of a guide book."""
    what = what_and_where(place)
    opening = random.choice((f"{place['name']} is {what}.", f"There is {what} called {place['name']}."))
    facts = []
    if "price" in place:
        facts.append(random.choice((f"has {place['price']} prices", f"is in the {place['price']} price range")))
    if "rating" in place:
        facts.append(random.choice((f"is rated {place['rating']}", f"got {place['rating']}")))
    if "families" in place:
        facts.append("welcomes families" if place["families"] == "yes" else "is not for families")
    return f"{opening} It {' and '.join(facts)}." if facts else opening


def diary(random: Random, place: Place) -> str:
    """The same facts in the style of a diary."""
    opening = random.choice(("We went to", "Last night we tried"))
    facts = []
    if "price" in place:
        facts.append(f"paid {place['price']} prices")
    if "rating" in place:
        facts.append(f"gave it {place['rating']}")
    if "families" in place:
        facts.append("took the children" if place["families"] == "yes" else "left the children at home")
    sentence = f"{opening} {place['name']}, {what_and_where(place)}."
    return f"{sentence} We {' and '.join(facts)}!" if facts else sentence


def rows(count: int, seed: int, diary_share: float) -> list[dict[str, str]]:
    """Records with ``prompt`` (attributes and an arrow) and ``completion`` (one or two sentences about them)."""
    random = Random(seed)
    records = []
    for _ in range(count):
        place = invent_place(random)
        attributes = ", ".join(f"{attribute}[{value}]" for attribute, value in place.items())
        write = diary if random.random() < diary_share else guide_book
        records.append({"prompt": f"{attributes} -> ", "completion": write(random, place)})
    return records


def train_tokenizer(texts: Sequence[str]) -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer of at most ``VOCABULARY`` tokens. It can encode any text."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[PAD, END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token=PAD, eos_token=END)


def make_model(tokenizer: PreTrainedTokenizerFast, seed: int) -> LlamaForCausalLM:
    """A Llama of four layers and about a million random weights."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=352,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=256,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
        tie_word_embeddings=False,
    )
    return LlamaForCausalLM(config)


def pretrain(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, texts: Sequence[str]) -> float:
    """Ordinary training on windows of the public text. Returns the loss of the last step (nats per token)."""
    stream = torch.tensor([token for text in texts for token in [*tokenizer(text).input_ids, tokenizer.eos_token_id]])
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    model.train()
    for _ in range(PRETRAINING_STEPS):
        starts = torch.randint(len(stream) - PRETRAINING_LENGTH, (PRETRAINING_BATCH,))
        windows = torch.stack([stream[start : start + PRETRAINING_LENGTH] for start in starts])
        loss = model(input_ids=windows, labels=windows).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return float(loss.detach())


def write_jsonl(path: Path, records: Iterable[dict[str, str]]) -> None:
    """Write one JSON object for each line. The file is renamed once it is complete."""
    temporary = path.with_name(path.name + ".part")
    temporary.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    temporary.replace(path)


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line: ``make_model_and_data.py [--seed S] [--out DIRECTORY]``. An existing model is kept."""
    parser = argparse.ArgumentParser(description="Make the causal-lm example's model and data.")
    parser.add_argument("--seed", type=int, default=7, help="same seed, same data (default 7)")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent, help="directory for model/ and data/")
    options = parser.parse_args(arguments)

    data, model_directory = options.out / "data", options.out / "model"
    data.mkdir(parents=True, exist_ok=True)
    write_jsonl(data / "train.jsonl", rows(PRIVATE_ROWS, options.seed, diary_share=1))
    write_jsonl(data / "eval.jsonl", rows(EVALUATION_ROWS, options.seed + 1, diary_share=1))
    print(f"wrote {PRIVATE_ROWS} training and {EVALUATION_ROWS} evaluation rows to {data}")
    if (model_directory / "config.json").exists():
        print(f"kept the model in {model_directory}; remove the directory to recreate it")
        return

    public = rows(PUBLIC_ROWS, options.seed + 2, DIARY_SHARE)
    texts = [row["prompt"] + row["completion"] for row in public]
    tokenizer = train_tokenizer(texts)
    model = make_model(tokenizer, options.seed)
    loss = pretrain(model, tokenizer, texts)
    partial = options.out / "model.part"
    shutil.rmtree(partial, ignore_errors=True)
    tokenizer.save_pretrained(partial)
    model.save_pretrained(partial)
    partial.rename(model_directory)
    print(f"wrote a model of {model.num_parameters():,} weights to {model_directory} (loss on public text {loss:.2f})")


if __name__ == "__main__":
    main()
