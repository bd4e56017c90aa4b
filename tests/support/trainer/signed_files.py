"""The files of an invented checkpoint, and their digests, for tests of signatures."""

from __future__ import annotations

from pathlib import Path

from tensafe_api.statement.contents import digest

STATEMENT = (Path(__file__).resolve().parents[3] / "tests/api/statement.json").read_bytes()
FILES = {"adapter_model.safetensors": b"weights", "manifest.json": b"{}", "statement.json": STATEMENT}
DIGESTS = {name: digest(content) for name, content in FILES.items()}
