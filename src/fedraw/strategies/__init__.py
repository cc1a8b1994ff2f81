"""One published method per file, each a value with `start` and `step`."""
