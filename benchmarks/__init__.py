"""What the README's figures come from. Run its modules from the repository's root with ``python -m benchmarks.…``.

This file makes the folder a regular package on purpose: one of the libraries installs a package of the same name,
and a folder without this file would lose to it.
"""
