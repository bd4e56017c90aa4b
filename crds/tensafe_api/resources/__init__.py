"""The resources of the API group tensafe.io as pydantic models: `job`, `ledger` and `profile`, and the blocks
they consist of.
"""
