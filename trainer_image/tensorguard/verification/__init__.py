"""Verifies a published checkpoint as a stranger would: from its files, and what the stranger trusts.

- `privacy_claim` computes every figure of a privacy statement again.
- `ledgers` compares a checkpoint with a ledger.
- `audit_logs` checks the chain of an audit log, and compares it with a ledger and a checkpoint.
- `checkpoint` reads a checkpoint, checks its files and its signature, and calls the first two.

`tensafe verify` prints the result. Nothing here trains, and nothing is written.
"""
