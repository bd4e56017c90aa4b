"""`make lint` finds every word of the list of words that the project does not use."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WORDS = [line.split("->")[0] for line in (ROOT / "scripts" / "words.txt").read_text(encoding="utf-8").splitlines()]


def codespell(file: Path) -> subprocess.CompletedProcess[str]:
    """Check a file as `make lint` does."""
    command = [sys.executable, "-m", "codespell_lib", str(file)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_every_word_of_the_list_is_found_in_prose(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("".join(f"The job {word} here.\n" for word in WORDS), encoding="utf-8")
    done = codespell(page)
    found = {line.split(":")[1] for line in done.stdout.splitlines()}
    assert done.returncode
    assert [word for number, word in enumerate(WORDS, 1) if str(number) not in found] == []


@pytest.mark.parametrize("line", ["def test_what_nobody_says():", "MEND = 1", "    # Goes on until it is told to go."])
def test_words_are_found_in_identifiers_and_at_the_start_of_a_sentence(line: str, tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    module.write_text(line + "\n", encoding="utf-8")
    assert codespell(module).returncode


def test_plain_sentences_pass(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("The operator continues once the Secret exists. An amendment is recommended.\n", encoding="utf-8")
    assert codespell(page).returncode == 0
