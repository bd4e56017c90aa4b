"""The parts of an operator that do not depend on what it operates.

API client, watch streams, object cache, work queue, leader election, periodic resync, health and metrics endpoints,
shutdown and JSON logs. Nothing in this package knows TenSafe: the caller passes in the kinds of objects (`Kinds`), the
names of metrics and of the Lease, and the fields of log lines. A contract of import-linter forbids other imports.
"""
