"""The command line's own way of reading arguments: argparse with one-sentence errors, and types that name the mend.

Out come numbers that are finite and in their range, so that no verb has to look at them again.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from tensafe_api.resources.values import MAX_SIGMA, MIN_DELTA, MIN_SIGMA
from tensorguard.cli.exit_codes import INVALID

Verbs = argparse._SubParsersAction
"""What `add_subparsers` returns; argparse has no public name for it."""


class Parser(argparse.ArgumentParser):
    """An argument parser that takes no abbreviations, keeps its texts' layout, and errs in one sentence."""

    def __init__(self, **settings: Any) -> None:
        settings.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        super().__init__(allow_abbrev=False, **settings)

    def error(self, message: str) -> NoReturn:
        print(f"{self.prog}: {message}; see `{self.prog} --help`", file=sys.stderr)
        raise SystemExit(INVALID)


class ShowVersion(argparse.Action):
    """`--version`; the distribution's metadata is read only when it is asked for."""

    def __init__(self, option_strings: Sequence[str], dest: str) -> None:
        super().__init__(option_strings, dest=argparse.SUPPRESS, nargs=0, help="print the version and exit")

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> NoReturn:
        import importlib.metadata

        print(f"tensafe {importlib.metadata.version('tensafe')}")
        raise SystemExit(0)


def real(condition: Callable[[float], bool], range_in_words: str) -> Callable[[str], float]:
    """A type for argparse: a finite number, written as 0.04, 4e-2 or 512/6920, for which `condition` holds."""

    def read(text: str) -> float:
        above, slash, below = text.partition("/")
        try:
            value = float(above) / float(below) if slash else float(above)
        except (ValueError, ZeroDivisionError):
            value = math.nan
        if not math.isfinite(value):
            raise argparse.ArgumentTypeError(f'"{text}" is no finite number: write it as 0.04, 4e-2 or 512/6920')
        if not condition(value):
            raise argparse.ArgumentTypeError(f"{text} must be {range_in_words}")
        return value

    return read


def whole(text: str) -> int:
    """A type for argparse: a whole number of at least 0."""
    try:
        value = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f'"{text}" is no whole number: write it as 2250') from None
    if value < 0:
        raise argparse.ArgumentTypeError(f"{text} must be at least 0")
    return value


positive = real(lambda value: value > 0, "above 0")
sensible_sigma = real(lambda value: MIN_SIGMA <= value <= MAX_SIGMA, f"from {MIN_SIGMA:g} to {MAX_SIGMA:g}")
probability = real(lambda value: 0 < value <= 1, "above 0 and at most 1")
open_fraction = real(lambda value: MIN_DELTA <= value < 1, f"at least {MIN_DELTA:g} and below 1")


def add_manifest(parser: argparse.ArgumentParser) -> None:
    """The arguments of every verb that reads a manifest."""
    parser.add_argument("manifest", metavar="JOB.yaml", help="the manifest: a TenSafeTrainingJob")
    parser.add_argument(
        "--set",
        dest="overrides",
        metavar="FIELD=VALUE",
        action="append",
        default=[],
        help="replace one field for this call, as spec.training.steps=20; may be given many times",
    )
