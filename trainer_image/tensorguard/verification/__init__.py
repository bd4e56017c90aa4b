"""Verifies a published checkpoint as a stranger would: from its files, and what the stranger trusts.

- `privacy_claim` computes every figure of a privacy statement again.
- `ledgers` compares a checkpoint with a ledger.
- `checkpoint` reads a checkpoint, checks its files and its signature, and calls the other two.

`tensafe verify` prints the result. Nothing here trains, and nothing is written.
"""
