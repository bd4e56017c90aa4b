"""Programs of a release and of its checks, built from their Go modules: `python -m tests.support.programs.tools NAME`.

It prints the path of the program, and builds it if the cache lacks it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from tests.support.programs import versions
from tests.support.programs.gotools import GoUnavailable, program
from tests.support.programs.helm import helm_command

_TOOLS: dict[str, Callable[[], Path]] = {
    "helm": lambda: Path(helm_command()[0]),
    "helm-docs": partial(program, "helm_docs", "github.com/norwoodj/helm-docs/cmd/helm-docs"),
    "registry": partial(program, "registry", "github.com/distribution/distribution/v3/cmd/registry"),
    "syft": partial(
        program,
        "syft",
        "github.com/anchore/syft/cmd/syft",
        linker_flags=f"-X main.version={versions.SYFT.removeprefix('v')}",
    ),
}


def tool(name: str) -> Path:
    """The program of this name.

    Raises:
        GoUnavailable: it is not in the cache, and Go is not available.
    """
    return _TOOLS[name]()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.support.programs.tools", description=__doc__)
    parser.add_argument("name", choices=sorted(_TOOLS))
    try:
        print(tool(parser.parse_args().name))
    except GoUnavailable as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
