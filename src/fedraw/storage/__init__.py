"""Files on disk: atomic writes, locks, snapshots of any state, numbered folders, tables, models.

Its modules are imported one by one, because some of them need optional packages.
"""
