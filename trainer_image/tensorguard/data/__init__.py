"""From a data set's URI to fixed-shape micro-batches. The modules, in the order in which a record passes them:

- `listing` finds the files at an address, and `columns` checks that they have the columns of the job.
- `formats` has one module for each file format, and `compression` opens `.gz` and `.zst` files. `files` reads the rows.
- `read` makes a Ray Data set of the rows, or of data in memory.
- `recipe` holds how a job wants its records tokenised; `tokenise` and `chat` have the parts that tasks tokenise with.
- `keys` computes a keyed hash for each record and each unit.
- `shards` runs all of this on Ray before training, and writes one Arrow file for each worker. In a cluster, `pod_shard`
  does the same in each pod without Ray. `partition` is the part that both share.
- `shard` is such a file, memory-mapped; `batches` cuts it into micro-batches.

One rule holds in every module: **what happens to a record depends on that record alone**, and nothing observable (an
error, a log line, a count) depends on a single record. A record that cannot be used is dropped without a message. Only
what is true of the whole data set (a missing column, no usable record) is refused.
"""
