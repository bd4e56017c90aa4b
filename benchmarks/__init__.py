"""The benchmarks behind the published figures. Run a module from the repository's root: ``python -m benchmarks.…``.

A library that the trainer needs installs a package of the same name. ``python -m`` and pytest (``pythonpath`` in
``pyproject.toml``) both search the repository's root first. This file makes the folder a regular package: a folder
without it would be a namespace package, which Python uses only if no regular package of that name exists anywhere.
"""
