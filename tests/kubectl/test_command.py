"""The command as a package: what it imports, what its help teaches, and how it prints."""

from __future__ import annotations

import argparse
import importlib.metadata
import io
import json
import subprocess
import sys

import pytest

from tensafe_api.sanitize import clean_document
from tensafe_kubectl.errors import CommandError
from tensafe_kubectl.main import command_parser, main
from tensafe_kubectl.terminal import age, bar, clean, print_facts, print_json
from tensorguard.cli.arguments import Parser
from tensorguard.cli.verbs import call_verb
from tests.support.plugin_team import Terminal

HEAVY = ("torch", "ray", "kopf", "transformers", "dp_accounting", "scipy", "numpy")


def verbs() -> dict[str, argparse.ArgumentParser]:
    (group,) = (each for each in command_parser()._actions if isinstance(each, argparse._SubParsersAction))
    return dict(group.choices)


def test_kubectl_finds_the_plugin() -> None:
    """kubectl runs the program `kubectl-tensafe` for `kubectl tensafe`."""
    (script,) = importlib.metadata.entry_points(group="console_scripts", name="kubectl-tensafe")
    assert script.value == "tensafe_kubectl.main:main"


def test_extra_has_what_the_plugin_imports_and_nothing_of_the_trainer() -> None:
    required = importlib.metadata.requires("tensafe") or []
    extra = {line.split(">")[0] for line in required if "extra == 'kubectl'" in line or 'extra == "kubectl"' in line}
    assert extra == {"kubernetes", "rich", "urllib3"}


@pytest.mark.slow
def test_nothing_heavy_is_imported_until_an_epsilon_is_computed() -> None:
    program = (
        "import sys, tensafe_kubectl.main as m; m.command_parser()\n"
        "from kubernetes import client, config; import tensafe_kubectl.connection\n"
        f"print([name for name in {HEAVY} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.slow
def test_computing_an_epsilon_imports_neither_torch_nor_ray() -> None:
    program = (
        "import sys, tensafe_kubectl.figures, tensafe_operator.decision.diagnosis\n"
        "print([name for name in ('torch', 'ray', 'kopf', 'transformers') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.slow
def test_missing_package_is_named_with_the_command_that_installs_it() -> None:
    program = (
        "import sys; sys.modules['rich'] = None\nfrom tensafe_kubectl.main import main; sys.exit(main(['status']))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "pipx install 'tensafe[kubectl]'" in done.stderr


@pytest.mark.parametrize("verb", verbs())
def test_help_of_every_verb_has_an_example_and_the_exit_codes(verb: str) -> None:
    text = verbs()[verb].format_help()
    assert f"  kubectl tensafe {verb} " in text
    assert ("Exit codes: 0 " in text and "130" in text) or verb in ("explain", "ledger", "statement")
    assert "--kubeconfig FILE" in text and "--context NAME" in text and "-n NS" in text


def test_verbs_are_those_that_users_need() -> None:
    expected = {"status", "explain", "ledger", "statement", "logs", "suspend", "resume", "run"}
    assert set(verbs()) == expected


def test_bar_is_full_only_at_the_end() -> None:
    assert bar(0, 100) == "░" * 30
    assert bar(99, 100) == "█" * 29 + "░"
    assert bar(100, 100) == bar(101, 100) == "█" * 30
    assert bar(0, 0) == "░" * 30


def test_ages_read_like_those_of_kubectl() -> None:
    assert [age("1970-01-01T00:00:00Z", seconds) for seconds in (0, 119, 120, 7_200, 172_800)] == [
        "0s",
        "119s",
        "2m",
        "2h",
        "2d",
    ]
    assert age(None, 0) == age("yesterday", 0) == ""


def test_control_characters_are_replaced() -> None:
    assert clean("red \x1b[31m\x9b1m\r\nnext\tcell") == "red �[31m1m next\tcell"


def test_text_of_the_cluster_cannot_imitate_other_lines() -> None:
    ends = ("\n", "\r", "\r\n", "\v", "\f", "\x1c", "\x1d", "\x1e", "\x85", "\u2028", "\u2029")
    for end in ends:
        assert clean(f"failed{end}ε spent 0.1") == "failed ε spent 0.1"
    every = "".join(map(chr, range(0x3000)))
    assert clean(every).splitlines() == [clean(every)]


def test_no_text_of_a_document_can_imitate_other_lines() -> None:
    document = {"a\n": ["b\n", {"c": "d\u2028"}], "number": 1, "none": None}
    assert clean_document(document) == {"a ": ["b ", {"c": "d "}], "number": 1, "none": None}


def test_controls_of_the_direction_of_text_are_dropped() -> None:
    controls = [*range(0x202A, 0x202F), *range(0x2066, 0x206A)]
    assert clean("".join(f"{chr(each)}ε" for each in controls)) == "ε" * 9
    assert clean("left\u200eright \U0001f642 א") == "left\u200eright \U0001f642 א"


def test_surrogates_can_be_printed() -> None:
    assert clean(json.loads('"lost \\ud800"')).encode() == "lost �".encode()


def test_json_is_ascii_on_a_terminal_and_plain_in_a_pipe(terminal: Terminal, capfd: pytest.CaptureFixture[str]) -> None:
    document = {"message": "ε \x9b2J\u202e\x1b"}
    print_json(document)
    assert "ε \x9b2J\u202e" in capfd.readouterr().out
    shown = terminal(lambda: print_json(document))
    assert shown.isascii() and "\x1b" not in shown and json.loads(shown) == document


@pytest.mark.parametrize("encoding", ["ascii", "cp1252"])
def test_output_without_an_epsilon_is_no_failure(encoding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The encoding of a pipe on Windows, and of some terminals."""
    written = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(written, encoding=encoding))

    def show(_: argparse.Namespace) -> int:
        print_facts([("ε spent", "1.5", "█")])
        return 0

    parser = Parser(prog="kubectl tensafe")
    parser.set_defaults(handler=show)
    assert call_verb(parser, []) == 0
    assert written.getvalue().decode(encoding).split() == ["?", "spent", "1.5", "?"]
    print_json({"message": "ε"})
    sys.stdout.flush()
    assert json.loads(written.getvalue().decode(encoding).partition("?\n")[2]) == {"message": "ε"}


def test_text_of_a_stranger_in_an_error_makes_no_line_of_its_own(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pod wrote the address of an adapter, with the page of a statement in it."""

    def fail(*_: object) -> int:
        raise CommandError("s3://b/x\n\nChecked: ε spent is 0.10\nfinal is not read: it is a chain")

    monkeypatch.setattr("tensafe_kubectl.main.call_verb", fail)
    assert main(["status"]) == 1
    assert capsys.readouterr().err == "s3://b/x  Checked: ε spent is 0.10 final is not read: it is a chain\n"
