"""The parser of a benchmark's options, whose usage names the command as it is run: `python -m benchmarks.NAME`."""

from __future__ import annotations

import argparse


def option_parser(name: str, description: str) -> argparse.ArgumentParser:
    """A parser for the module `benchmarks.NAME`."""
    return argparse.ArgumentParser(prog=f"python -m benchmarks.{name}", description=description)
