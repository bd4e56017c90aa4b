"""kubectl reads each manifest that `tensafe` accepts in the same way. Otherwise a job could run with another ε."""

from __future__ import annotations

import json
import math
import random
import subprocess
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import yaml

from tensafe_api.manifest import yaml_io
from tests.support.programs.gotools import program

pytestmark = pytest.mark.cluster

WORDS = 'a b ε y n N on Off True null ~ Null .inf .nan = << "<<" \'it\'\'s\' "\\u0041" "a\\tb" x#y 2026-01-31 %T a:b -a'
NUMBERS = (
    "8 20.0 2e1 +5 -0 010 08 0o17 0O17 0x10 0X1_F 0b11 -0B1 1_000 1_0.5 .5 5. .5_0 ._5 _1 1_ 1e400 1e-400 1:30 "
    "18446744073709551616 0.1 123456789012345678.5 +.5 -.e1 1e 0x 0_9"
)
TAGGED = ("! 5", "! y", "!!str 5", '!!int "5"', '!!float "5"', "!!bool on", '!!null ""', "!!int 1:30")
SHAPES = ("[1, 2]", "[a: 1]", "{}", "{a: 1, b}", '{"a":1}', "*x", "&x {a: 4, b: 5}", "&x 5", "[*x, *x]")
BLOCKS = ("|\n{}  text\n", ">-\n{}  a\n{}  b\n", "a\n{}  b", "'a\n\n{}  b'", "|2+\n{}   a\n\n")
SCALARS = [*WORDS.split(), *NUMBERS.split(), *TAGGED, *SHAPES, *BLOCKS, ""]
MERGED = ["{a: 7}", "[{a: 1}, {a: 2, b: 3}]", "{<<: {a: 5}, b: 6}", "*x", "[*x, {c: 8}]"]
KEYS = ["a", "b", "c", "'d'", '"e"', "<<", "? f", "a b", "!!str g", "&k h", "ε"]
INSERTED = [
    "\r\n",
    "\n---\n",
    "\n...\n",
    "\n%YAML 1.1\n---\n",
    "\n--- # a\n",
    *"\t \r\u2028\x85\ufeff:\"'#-,{}[]|\n\\*&!%",
]
TEXTS, LEAST_COMPARED = 5_000, 500


def block(chance: random.Random, indent: str = "", levels: int = 3) -> str:
    """A mapping or a list in block style. Most are YAML, and some are not."""
    is_list = bool(indent) and chance.random() < 0.5
    count = chance.randint(1, 4)
    lines = []
    for key in ["-"] * count if is_list else chance.sample(KEYS, count):
        start = indent + key + ":" * (not is_list)
        if key == "<<":
            lines.append(f"{start} {chance.choice(MERGED)}\n")
        elif levels and chance.random() < 0.3:
            after = chance.choice(["", "", " &x", " !!map", " # text"])
            lines.append(f"{start}{after}\n{block(chance, indent + chance.choice(['  ', ' ']), levels - 1)}")
        else:
            lines.append(f"{start} {chance.choice(SCALARS).replace('{}  ', indent + '  ')}\n")
    return "".join(lines)


def text_of(chance: random.Random) -> str:
    text = "x: &x {a: 1, b: 2}\n" + block(chance)
    if chance.random() < 0.2:
        place = chance.randint(0, len(text))
        text = text[:place] + chance.choice(INSERTED) + text[place:]
    return text


@pytest.fixture(scope="module")
def kubectl_reads() -> Iterator[Callable[[str], dict[str, Any]]]:
    command = [str(program("kubectl_yaml", "tensafe.io/e2e/kubectl_yaml"))]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None and process.stdout is not None
        stdin, stdout = process.stdin, process.stdout

        def read(text: str) -> dict[str, Any]:
            print(json.dumps(text), file=stdin, flush=True)
            result: dict[str, Any] = json.loads(stdout.readline())
            return result

        yield read
        stdin.close()


def as_json(value: Any) -> Any:
    """The value with integers as floats, as far as both can differ in JSON, without the sign of zero."""
    if isinstance(value, list):
        return [as_json(each) for each in value]
    if isinstance(value, dict):
        return {key: as_json(each) for key, each in value.items()}
    return value if isinstance(value, bool | str | None) else float(value)


def is_finite(value: Any) -> bool:
    """Whether no number is infinite or NaN, which JSON does not have: no field of a job takes it."""
    if isinstance(value, list | dict):
        return all(is_finite(each) for each in (value.values() if isinstance(value, dict) else value))
    return not isinstance(value, float) or math.isfinite(value)


@pytest.mark.parametrize("seed", range(2))
def test_manifest_that_tensafe_accepts_is_read_by_kubectl_in_the_same_way(
    kubectl_reads: Callable[[str], dict[str, Any]], seed: int
) -> None:
    chance = random.Random(seed)
    compared = 0
    for _ in range(TEXTS):
        text = text_of(chance)
        try:
            documents, problems = yaml_io.read_documents(text)
        except yaml.YAMLError:
            continue
        if problems or not is_finite(documents):
            continue
        result = kubectl_reads(text)
        if not result["error"]:
            found = [each for each in result["documents"] or () if each is not None]
            assert as_json(documents) == as_json(found), text
            compared += 1
    assert compared > LEAST_COMPARED
