"""The resources of the API group tensafe.io as pydantic models: `job` and `ledger`, and the blocks they consist of."""
