"""The options that all verbs share, and the parser with one-sentence errors."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from tensafe_kubectl.connection import Options
from tensafe_kubectl.errors import INVALID, CommandError
from tensorguard.cli.arguments import Parser

__all__ = [
    "Parser",
    "Target",
    "add_cluster_options",
    "add_job",
    "add_job_or_ledger",
    "add_output",
    "options_of",
    "whole_number",
]


def add_cluster_options(parser: argparse.ArgumentParser, *, default: object = argparse.SUPPRESS) -> None:
    """Add -n, --context and --kubeconfig, which may stand before or after the verb."""
    parser.add_argument(
        "-n",
        "--namespace",
        metavar="NS",
        type=_object_name,
        default=default,
        help="namespace (default: that of the context)",
    )
    parser.add_argument(
        "--context", metavar="NAME", default=default, help="context of the kubeconfig (default: the current one)"
    )
    parser.add_argument(
        "--kubeconfig",
        metavar="FILE",
        default=default,
        help="kubeconfig file (default: KUBECONFIG, else ~/.kube/config)",
    )


def add_job(parser: argparse.ArgumentParser, *, optional: str = "") -> None:
    """Add the name of a job. optional: what the verb does without it."""
    _add_name(parser, _job_name, "name of the job", optional)


def add_job_or_ledger(parser: argparse.ArgumentParser, *, optional: str = "") -> None:
    """Add the name of a job or of a ledger. optional: what the verb does without it."""
    _add_name(parser, _target, "name of the job or of its ledger; tsj/NAME is a job, pledger/NAME a ledger", optional)


def _add_name(parser: argparse.ArgumentParser, kind: Callable[[str], object], meaning: str, optional: str) -> None:
    default = f" (default: {optional})" if optional else ""
    parser.add_argument("name", metavar="NAME", nargs="?" if optional else None, type=kind, help=meaning + default)


def add_all_namespaces(parser: argparse.ArgumentParser, what: str) -> None:
    """Add -A, for verbs that list `what` without a name."""
    parser.add_argument("-A", "--all-namespaces", action="store_true", help=f"list the {what} of all namespaces")


def refuse_name_in_all_namespaces(arguments: argparse.Namespace, what: str) -> None:
    """Raise CommandError where a name was given with -A. `what` starts the sentence."""
    if arguments.name and arguments.all_namespaces:
        raise CommandError(f"{what} is in one namespace: write NAME with -n, or -A without NAME", INVALID)


def add_output(parser: argparse.ArgumentParser) -> None:
    """Add -o, for verbs whose result a program may read."""
    parser.add_argument("-o", dest="output", choices=("text", "json"), default="text", help="text (default) or json")


def options_of(arguments: argparse.Namespace) -> Options:
    """The cluster that the arguments name."""
    return Options(arguments.kubeconfig, arguments.context, arguments.namespace)


def whole_number(text: str) -> int:
    """A type for argparse: a whole number of at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f'"{text}" is not a whole number of at least 1')
    return int(text)


@dataclass(frozen=True)
class Target:
    """What a user names.

    Attributes:
        kind: a job or a ledger; None: the user has not said which of them.
    """

    name: str
    kind: Literal["tsj", "pledger"] | None = None


def _target(text: str) -> Target:
    """A type for argparse: NAME, tsj/NAME or pledger/NAME, or with a long name of the kind as kubectl prints it."""
    kind, slash, name = text.rpartition("/")
    if not slash:
        return Target(_object_name(name))
    if kind == "pledger" or kind.startswith("privacyledger"):
        return Target(_object_name(name), "pledger")
    if kind == "tsj" or kind.startswith("tensafetrainingjob"):
        return Target(_object_name(name), "tsj")
    raise argparse.ArgumentTypeError(f'"{text}" is neither a job nor a ledger: write NAME, tsj/NAME or pledger/NAME')


def _job_name(text: str) -> str:
    """A type for argparse: NAME, or tsj/NAME as kubectl prints it."""
    kind, slash, name = text.rpartition("/")
    if slash and not (kind == "tsj" or kind.startswith("tensafetrainingjob")):
        raise argparse.ArgumentTypeError(f'"{text}" is not a job: write NAME or tsj/NAME')
    return _object_name(name)


def _object_name(text: str) -> str:
    """A type for argparse: a name that can be part of a path."""
    if not re.fullmatch(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?", text):
        raise argparse.ArgumentTypeError(
            f'"{text}" is not a name in Kubernetes: write lower-case letters, digits and -'
        )
    return text
