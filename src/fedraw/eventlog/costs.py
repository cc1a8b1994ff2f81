"""The costs of a run: virtual hours, bytes and energy.

The log has bytes and joules. Tables and figures have megabytes and kilojoules.
"""

from __future__ import annotations

from collections.abc import Mapping

# The columns of costs, in the order of tables.
COSTS = ("hours", "MB", "kJ")


def cost_columns(costs: Mapping[str, float] | None) -> dict[str, float]:
    """Return the costs of a log's record by the names of their columns.

    >>> cost_columns({"hours": 0.5, "bytes": 3_000_000, "joules": 1200.0})
    {'hours': 0.5, 'MB': 3.0, 'kJ': 1.2}
    """
    if costs is None:
        return {}
    found = {"hours": costs["hours"], "MB": costs["bytes"] / 1e6}
    return found | ({"kJ": costs["joules"] / 1e3} if "joules" in costs else {})
