"""The command `tensafe`: one file for each verb.

`main` parses the command line and calls `account`, `validate`, `ledger`, `export` or `run`. A verb imports what it
needs when it is called, so that `tensafe --help` and `tensafe account` do not wait for torch and Ray.

Standard output holds results and nothing else. Progress, warnings and errors go to standard error.
"""
