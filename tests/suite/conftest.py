"""The files of tests that never end are collected only if they are named."""

collect_ignore = ["ends_its_process.py", "takes_long.py"]
