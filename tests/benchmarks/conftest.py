"""Puts the repository's root first, since another library installs a package that is called `benchmarks` too."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
