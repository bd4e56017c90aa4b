"""Adds the workers' vectors and reveals nothing but their noised sum.

In: the integer sum of clipped gradients of each worker, and its share of the noise. Out: the noised sum of all workers,
the same on every worker, or nothing. The modules, in the order in which a step needs them:

- `channel` carries messages and sums between the workers. `session` identifies one incarnation of the worker group, and
  derives keys and tags that are bound to it.
- `protocol` is the interface that `training.step` calls, and `registry` lists the protocols by name.
- `header` compares the facts of a step on all workers before anything is revealed.
- `pairwise_masks` is the protocol that runs. `keys` agrees on a key for each pair of workers, and `neighbours` chooses
  the pairs that share a mask. `masks` makes masks that cancel in the sum, `reduce` adds, and `verify` checks the sum.

docs/extending/aggregation-protocol.md lists what every protocol must guarantee.
"""
