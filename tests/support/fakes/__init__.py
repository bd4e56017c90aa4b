"""Fakes of what does not run where there are no nodes: KubeRay, the kubelet, and the trainer's rank 0.

`statuses` holds what these write, as plain objects; the in-memory cluster of the operator's property tests uses it too.
`kuberay` and `trainer` write these objects to a real API server. `simulator` does so for every RayJob of a cluster.
"""
