"""A run on the nodes of a Ray cluster that the user has started, such as one of `ray up`, without Kubernetes.

- `cluster` joins the cluster, lists its nodes, and calls small tasks on them.
"""
