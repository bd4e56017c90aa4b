"""The record of charged steps, from which every ε is computed.

In: acquisitions, charges, published checkpoints and outcomes, from rank 0. Out: a `LedgerState`. A charge is durable
before its call returns, and nothing takes it back. The modules, from the caller to the stored bytes:

- `contract` is the interface: the operations, the state and the errors.
- `backends` opens the ledger of a run: `file` is the backend on one machine, `kubernetes` the one in a cluster.
- `writer` has the write operations that both backends share.
- `fold` computes a state from entries.
"""
