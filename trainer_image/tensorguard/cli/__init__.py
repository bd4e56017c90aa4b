"""The command `tensafe`: one file for each verb.

`main` reads the command line and hands over to `account`, `validate`, `ledger` or `run`. Each of these imports what
it needs only when it is called, so that `tensafe --help` and `tensafe account` answer without waiting for torch and
Ray.

Standard output carries results and nothing else; progress, warnings and errors go to standard error.
"""
