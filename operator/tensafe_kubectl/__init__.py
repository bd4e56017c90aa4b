"""`kubectl tensafe`: the jobs of a cluster for the people who run them. One module for each verb.

A kubeconfig and the name of a job come in; text for a terminal, or JSON for a program, goes out. The plugin has the
rights of its caller and no others. It reads what the operator has written and repeats its reasons; it decides nothing.
Its writes are two: it applies a manifest (`run`), and it sets `spec.suspend` (`suspend`, `resume`).

The plugin is installed on laptops, so it imports neither torch, Ray nor kopf. dp-accounting is imported only by the
verbs that compute an ε.
"""
