"""From a data set's URI to fixed-shape micro-batches. The modules, in the order in which a record passes them:

- `listing` finds the files at an address, and `columns` checks that they have the columns of the job.
- `formats` has one module for each file format, and `compression` opens compressed files. `files` reads the rows.
- `read` makes a Ray Data set of the rows, or of data in memory, whose records `records` finds.
- `partition` assigns each record to a worker, and then tokenises it. `keys` computes the keyed hashes of the record and
  its unit that decide the worker.
- `overlap` compares the evaluation set with the private records: a set that is training data is not public.
- `recipe` holds how a job wants its records tokenised; `tokenise`, `chat` and `images` have the parts that tasks make
  tokens and pixels with.
- `shards` runs all of this on Ray before training, and writes one Arrow file for each worker. In a cluster, `pod_shard`
  does the same in each pod without Ray.
- `shard` is such a file, memory-mapped; `batches` cuts it into micro-batches, whose rows `rows` makes.

One rule holds in every module: **what happens to a record depends on that record alone**, and nothing observable (an
error, a log line, a count) depends on a single record. A record that cannot be used is dropped without a message. Only
what is true of the whole data set (a missing column, no usable record, a public set that is mostly private) is refused.
"""
