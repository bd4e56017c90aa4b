"""Writes the data of the token-classification example: invented letters whose personal details are tagged.

In: a seed. Out: ``data/train.jsonl`` (the private set) and ``data/eval.jsonl`` (a public set about other people). A
record is a list of words and a list of tags, one for each word, in the IOB2 form: ``B-name`` is the first word of a
name, ``I-name`` a further one, and ``O`` a word that is no personal detail. ``job.yaml`` beside this file reads both.

Faker invents every person, so nothing here needs protection. The same seed writes the same bytes.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from random import Random

from faker import Faker

KINDS = ("name", "date", "phone", "place")
TAGS = ("O", *(f"{prefix}-{kind}" for kind in KINDS for prefix in ("B", "I")))
"""The order is that of `model.labelNames` in job.yaml."""
TRAINING_ROWS, EVALUATION_ROWS = 4200, 400

# A word in braces is a personal detail of that kind. All other words are tagged O.
OPENINGS = (
    "Dear {name} , thank you for your letter of {date} .",
    "{name} came to the clinic in {place} on {date} .",
    "Re : {name} , born {date} , phone {phone} .",
    "I saw {name} of {place} again on {date} .",
    "Thank you for sending {name} to us .",
    "We spoke with {name} by phone ( {phone} ) on {date} .",
)
MIDDLES = (
    "The knee is better and the swelling has gone .",
    "There was no fever in the last two weeks .",
    "The tablets were changed in May , without side effects .",
    "The daughter , {name} , lives in {place} and helps every day .",
    "An operation took place in {place} on {date} .",
    "The blood pressure was 140 over 90 , the pulse 72 .",
    "The family doctor , Dr {name} , was informed .",
    "The next scan is planned for {date} .",
)
CLOSINGS = (
    "Please call {phone} with any question .",
    "The next visit is on {date} in {place} .",
    "With kind regards , {name}",
    "A copy goes to {name} , {place} .",
    "No further visit is needed .",
)
WORD_LIMIT = 60
# Fixed dates: counted from today, the same seed would write other bytes tomorrow.
YEARS = date(1940, 1, 1), date(2025, 12, 31)


def detail(kind: str, fake: Faker) -> list[str]:
    """The words of an invented personal detail."""
    match kind:
        case "name":
            text = fake.name()
        case "date":
            text = fake.date_between_dates(*YEARS).strftime("%d %B %Y")
        case "phone":
            text = fake.phone_number()
        case _:
            text = fake.city()
    return text.split()


def write_letter(random: Random, fake: Faker) -> dict[str, list[str]]:
    """One record: ``tokens`` of at most ``WORD_LIMIT`` words, and their ``tags``."""
    sentences = [random.choice(OPENINGS), *random.sample(MIDDLES, random.randint(1, 2)), random.choice(CLOSINGS)]
    tokens: list[str] = []
    tags: list[str] = []
    for word in " ".join(sentences).split():
        if word.startswith("{"):
            kind = word.strip("{}")
            words = detail(kind, fake)
            tokens += words
            tags += [f"B-{kind}", *[f"I-{kind}"] * (len(words) - 1)]
        else:
            tokens.append(word)
            tags.append("O")
    return {"tokens": tokens[:WORD_LIMIT], "tags": tags[:WORD_LIMIT]}


def letters(rows: int, *, seed: int) -> list[dict[str, list[str]]]:
    """``rows`` letters about invented people."""
    random = Random(seed)
    fake = Faker("en_GB")
    fake.seed_instance(seed)
    return [write_letter(random, fake) for _ in range(rows)]


def write_jsonl(path: Path, records: Sequence[dict[str, list[str]]]) -> None:
    """One JSON object a line."""
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line: ``make_data.py [--rows N] [--seed S] [--out DIRECTORY]``."""
    parser = argparse.ArgumentParser(description="Write invented, tagged letters for the token-classification example.")
    parser.add_argument("--rows", type=int, default=TRAINING_ROWS, help="training letters (default 4200)")
    parser.add_argument("--seed", type=int, default=7, help="same seed, same files (default 7)")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "data", help="directory to write to")
    options = parser.parse_args(arguments)
    if options.rows < 1:
        parser.error("--rows must be at least 1")
    options.out.mkdir(parents=True, exist_ok=True)
    write_jsonl(options.out / "train.jsonl", letters(options.rows, seed=options.seed))
    write_jsonl(options.out / "eval.jsonl", letters(EVALUATION_ROWS, seed=options.seed + 1))
    print(f"wrote {options.rows} training and {EVALUATION_ROWS} evaluation letters to {options.out}")


if __name__ == "__main__":
    main()
