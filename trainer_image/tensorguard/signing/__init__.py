"""Keys that sign and encrypt checkpoints (`keys`).

The libraries are imported when a function needs them, since most commands sign nothing.
"""
