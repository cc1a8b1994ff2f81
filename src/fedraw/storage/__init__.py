"""Files on disk: atomic writes, locks, snapshots of any state, numbered folders, tables, models.

Import the modules directly; the package exports nothing, because some modules need extras.
"""
