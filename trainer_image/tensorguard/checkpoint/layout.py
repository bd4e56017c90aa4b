"""The names of the files in a checkpoint that readers use: the adapter, as peft reads it, its card, the statement.

Where a job encrypts its checkpoints, each file with weights or optimiser state has a name that ends in `ENCRYPTED`.
peft then reports that the weights are missing, and reads no encrypted bytes as weights.
"""

from __future__ import annotations

from tensafe_api.statement.contents import STATEMENT_FILE

__all__ = ["ADAPTER_CONFIG", "ADAPTER_WEIGHTS", "ENCRYPTED", "MODEL_CARD", "STATEMENT_FILE", "STATEMENT_PAGE"]

ADAPTER_WEIGHTS = "adapter_model.safetensors"
ADAPTER_CONFIG = "adapter_config.json"
STATEMENT_PAGE = "statement.md"
MODEL_CARD = "README.md"
ENCRYPTED = ".age"
