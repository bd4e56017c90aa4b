"""The files of a checkpoint, and the folder or object store that keeps them.

In: named files as bytes. Out: a complete checkpoint with a digest, or none. `training.checkpointing` decides what is in
a checkpoint, and publishes it in the ledger. The modules, in the order in which a checkpoint is written:

- `layout` names the files that readers of a checkpoint use.
- `optimizer_state` is the optimiser's state as bytes.
- `trainer_state` is the step, and the position in the ledger.
- `encryption` encrypts the files that only recipients may read, before they are stored.
- `store` writes, reads and removes checkpoints.
"""
