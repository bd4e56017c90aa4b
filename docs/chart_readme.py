"""`python -m docs.chart_readme`: writes charts/tensafe/README.md from the comments of its values.

helm-docs, which is built from its Go module, fills README.md.gotmpl.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.support.programs.gotools import GoUnavailable
from tests.support.programs.helm import CHART
from tests.support.programs.tools import tool

README = CHART / "README.md"


def generate() -> str:
    """What the README should be.

    Raises:
        GoUnavailable: helm-docs cannot be built here.
    """
    with tempfile.TemporaryDirectory() as folder:
        chart = Path(folder, CHART.name)
        chart.mkdir()
        for name in ("Chart.yaml", "values.yaml", "README.md.gotmpl"):
            shutil.copy(CHART / name, chart)
        options = ["--chart-search-root", folder, "--sort-values-order", "file", "--log-level", "warning"]
        subprocess.run([str(tool("helm-docs")), *options], check=True)
        return (chart / README.name).read_text()


def main() -> int:
    try:
        README.write_text(generate())
    except GoUnavailable as error:
        print(f"{README.name} of the chart was not written: {error}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
