"""Settings that keep Flower and Ray from sending telemetry in a simulation."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[2]
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
}
