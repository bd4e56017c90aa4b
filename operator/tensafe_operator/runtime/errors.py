"""Errors that end the operator with one sentence instead of a traceback."""

from __future__ import annotations


class ConfigurationError(Exception):
    """The operator cannot start with this configuration. `str()` is one sentence that names the setting and the fix."""
