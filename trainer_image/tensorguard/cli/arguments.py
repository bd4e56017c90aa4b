"""argparse with one-sentence errors, and argument types whose errors name the fix.

The types return numbers that are finite and in their range, so that no verb checks them again.
"""

from __future__ import annotations

import argparse
import math
import re
import shlex
import stat
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from tensafe_api.resources.numeric import MAX_SIGMA, MIN_DELTA, MIN_SIGMA, parse_quantity
from tensorguard.cli.exit_codes import INVALID
from tensorguard.signing.keys import identity_in_environment

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction["Parser"]
else:
    Subparsers = argparse._SubParsersAction
"""The type that `add_subparsers` returns; argparse has no public name for it."""


def identity_file(arguments: argparse.Namespace) -> Path | None:
    """The file of the identity that --identity or the environment names; None where neither does."""
    given: Path | None = arguments.identity
    identity = given or identity_in_environment()
    if identity is not None:
        warn_of_readers(identity)
    return identity


def warn_of_readers(secret: Path) -> None:
    """Print a warning to standard error if other users of this machine can read the file of a secret key."""
    try:
        mode = stat.S_IMODE(secret.stat().st_mode)
    except OSError:  # reading it explains this
        return
    if mode & 0o077 and secret.is_file():
        fix = f"chmod 600 {shlex.quote(str(secret))}"
        print(f"warning: other users can read the key file {secret} (mode {mode:o}): {fix}", file=sys.stderr)


class Parser(argparse.ArgumentParser):
    """An argument parser without abbreviations. It keeps the layout of texts, and reports errors in one sentence."""

    def __init__(self, **settings: Any) -> None:
        settings.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        super().__init__(allow_abbrev=False, **settings)

    def error(self, message: str) -> NoReturn:
        print(f"{self.prog}: {message}; see `{self.prog} --help`", file=sys.stderr)
        raise SystemExit(INVALID)


class ShowVersion(argparse.Action):
    """`--version`. The distribution's metadata is read only when this option is given."""

    def __init__(self, option_strings: Sequence[str], dest: str) -> None:
        super().__init__(option_strings, dest=argparse.SUPPRESS, nargs=0, help="print the version and exit")

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> NoReturn:
        import importlib.metadata

        print(f"tensafe {importlib.metadata.version('tensafe')}")
        raise SystemExit(0)


def number_type(condition: Callable[[float], bool], valid_range: str) -> Callable[[str], float]:
    """A type for argparse: a finite number, written as 0.04, 4e-2 or 512/6920, for which `condition` is true."""

    def parse(text: str) -> float:
        numerator, slash, denominator = text.partition("/")
        try:
            value = float(numerator) / float(denominator) if slash else float(numerator)
        except (ValueError, ZeroDivisionError):
            value = math.nan
        if not math.isfinite(value):
            raise argparse.ArgumentTypeError(f'"{text}" is not a finite number: write it as 0.04, 4e-2 or 512/6920')
        if not condition(value):
            raise argparse.ArgumentTypeError(f"{text} is out of range: it must be {valid_range}")
        return value

    return parse


def whole_number(text: str) -> int:
    """A type for argparse: a whole number of at least 0."""
    try:
        value = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f'"{text}" is not a whole number: write it as 2250') from None
    if value < 0:
        raise argparse.ArgumentTypeError(f"{text} is out of range: it must be at least 0")
    return value


def memory_size(text: str) -> int:
    """A type for argparse: bytes above 0, written as a Kubernetes quantity or as 80GB."""
    if re.fullmatch(r"[0-9.]+", text):
        raise argparse.ArgumentTypeError(f'"{text}" has no unit: write {text}Gi or {text}G')
    try:
        value = int(parse_quantity(text.removesuffix("B")))
    except ValueError:
        raise argparse.ArgumentTypeError(f'"{text}" is not a size: write it as 24Gi or 80G') from None
    if value <= 0:
        raise argparse.ArgumentTypeError(f"{text} is out of range: it must be above 0")
    return value


positive = number_type(lambda value: value > 0, "above 0")
noise_multiplier = number_type(lambda value: MIN_SIGMA <= value <= MAX_SIGMA, f"from {MIN_SIGMA:g} to {MAX_SIGMA:g}")
probability = number_type(lambda value: 0 < value <= 1, "above 0 and at most 1")
delta = number_type(lambda value: MIN_DELTA <= value < 1, f"at least {MIN_DELTA:g} and below 1")


def add_manifest_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of every verb that reads a manifest."""
    parser.add_argument("manifest", metavar="JOB.yaml", help="the manifest: a YAML file with a TenSafeTrainingJob")
    parser.add_argument(
        "--set",
        dest="overrides",
        metavar="FIELD=VALUE",
        action="append",
        default=[],
        help="replace one field for this call, such as spec.training.steps=20, or remove it with FIELD=null; "
        "can be repeated",
    )
