"""A run on the nodes of a Ray cluster that the user has started, such as one of `ray up`, without Kubernetes.

Each node trains as a pod does: it reads the data set itself, and holds the job key in a file of its own. The run's
folder is on storage that all nodes share. The modules, in the order in which a run uses them:

- `cluster` joins the cluster, lists its nodes, and calls small tasks on them.
- `checks` refuses, before anything is spent, nodes without the same key or without the run's folder.
- `node_files` holds what a rank receives from the driver, and reads what it finds on its node: the key, a free folder.
- `rank` is one rank on its node: it makes its own shard, then trains.
"""
