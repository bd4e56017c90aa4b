"""From a data set's URI to fixed-shape micro-batches. The modules, in the order in which a record passes them:

- `addresses` finds the files at an address. `lake_tables` recognises tables whose files must not be read by themselves,
  and `partitions` reads the columns that the names of folders hold.
- `listing` finds the format of the files, and `columns` checks that they have the columns of the job.
- `formats` has one module for each file format, whose rows have typed values. `compression` opens compressed files.
- `raw_table` converts the values with the rules of `values` and `conversations`, the same for every source. `files`
  does so for files, and `memory` for data in memory, whose records `records` finds. `arrow_rows` reads Arrow types.
- `read` makes a Ray Data set of the raw tables.
- `partition` assigns each record to a worker, and then tokenises it. `keys` computes the keyed hashes of the record and
  its unit that decide the worker.
- `unusable` has the kinds of records that cannot be used, and the tally of them that ends a job.
- `overlap` compares the evaluation set with the private records: a set that is training data is not public.
- `recipe` holds how a job wants its records tokenised; `tokenise`, `chat` and `images` have the parts that tasks make
  tokens and pixels with.
- `shards` runs all of this on Ray before training, and writes one Arrow file for each worker. In a cluster, `pod_shard`
  does the same in each pod without Ray.
- `shard` is such a file, memory-mapped; `batches` cuts it into micro-batches, whose rows `rows` makes.

Two rules hold in every module. **What happens to a record depends on that record alone.** And **every record is
trained, or an error says why not**: what cannot be read or used ends the job before anything is charged, with the place
and without content (decision 0072). With `dataset.unusable: Skip`, a record that cannot be used is left out, and
nothing observable depends on it.
"""
