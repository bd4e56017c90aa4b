"""Manifests: their text, their validation, and changes to them from a command line."""
