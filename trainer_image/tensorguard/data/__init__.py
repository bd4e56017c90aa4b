"""From a data set's URI to fixed-shape micro-batches. Read the modules in the order in which one record meets them.

`listing` finds what there is at an address and `columns` whether it is what the job names; `files` reads rows, of any
format from any file system; `read` makes a Ray Data set of it, or of what Python already holds; `recipe` says how one
record becomes tokens and `tokenise`, with `chat` for conversations, does it; `keys` names records and units by keyed
hashes; `shards` runs all of this on Ray, before training, and leaves one Arrow file for each worker; `shard` is that
file, memory-mapped; `batches` cuts it into micro-batches whose shapes depend on nobody's neighbours.

One rule runs through every module: **what happens to a record depends on that record alone**, and nothing observable
(an error, a log line, a count) depends on a single one. A record that cannot be used is dropped in silence; only what
is true of the whole data set (no such column, nothing usable at all) is refused.
"""
