"""What the section [costs] means for one seed: seconds, bytes and energy of each client."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedraw.core.randomness import Streams
from fedraw.core.text import several
from fedraw.core.types import ClientId, Floats
from fedraw.errors import BadInput, error_context
from fedraw.eventlog.records import ArrivalRecord, LostRecord, Record, RejectedRecord
from fedraw.simulation.flights import WENT_OFFLINE
from fedraw.storage.tables import UnreadableCell, open_table, parse_name, parse_number, quoted

if TYPE_CHECKING:
    from fedraw.experiment.clients import Clients
    from fedraw.experiment.sections import Costs
    from fedraw.experiment.spec import Spec

# The columns of a table of devices, which needs at least one of them.
DEVICE_COLUMNS = ("seconds_per_sample", "upload_mbit", "download_mbit")


@dataclass(frozen=True, eq=False)
class ClientCosts:
    """Mean seconds of each client's training, and seconds to receive and to send a model."""

    seconds: Floats
    download: Floats
    upload: Floats
    model_bytes: int
    update_bytes: int  # of what a client sends, which may be larger than the model

    def transfer(self, client: int) -> float:
        """Return the seconds that the client at a position needs to receive and send the model."""
        return self.download.item(client) + self.upload.item(client)


def client_costs(
    spec: Spec,
    clients: Clients,
    model_bytes: int,
    streams: Streams,
    update_bytes: int | None = None,
) -> ClientCosts:
    """Draw or read the costs of each client.

    Args:
        spec: The experiment.
        clients: The clients, whose speeds are known.
        model_bytes: The size of the model.
        streams: The random streams.
        update_bytes: The size of what a client sends; by default that of the model.

    """
    costs = spec.costs
    assert costs is not None
    devices: Mapping[str, Floats] = {}
    names = clients.table.clients
    if costs.trace is not None:
        devices = read_devices(Path(costs.trace), names)
        twice = next((key for key in devices if getattr(costs, key) is not None), None)
        if twice is not None:
            raise BadInput(
                f"costs.{twice} is set, and {costs.trace} has a column of this name; leave one out"
            )
    size = costs.model_bytes or model_bytes
    sent = update_bytes or size
    rng = streams.generator("bandwidth")
    # A client's upload and download are fast or slow together.
    spread = np.exp(costs.bandwidth_spread * rng.standard_normal(len(names)))

    def seconds_to_send(key: str, size: int) -> Floats:
        mbit = getattr(costs, key)
        if key in devices:
            mbit = devices[key]
        elif mbit is None:
            return np.zeros(len(names))
        else:
            mbit = mbit * spread
        if not size:
            raise BadInput(
                "costs.model_bytes is missing: with training.kind = 'none' there is no model, and "
                f"{key} needs its size"
            )
        return np.asarray(8e-6 * size / mbit, np.float64)

    seconds = clients.seconds
    work = clients.table.totals() * spec.training.epochs
    if "seconds_per_sample" in devices:
        seconds = devices["seconds_per_sample"] * work
    elif costs.seconds_per_sample is not None:
        seconds = seconds * costs.seconds_per_sample * work
    if seconds is not clients.seconds and clients.trace is not None:
        raise BadInput(
            "costs.seconds_per_sample says how long trainings take, and so does the trace of "
            "speeds; leave one of them out"
        )
    return ClientCosts(
        seconds,
        seconds_to_send("download_mbit", size),
        seconds_to_send("upload_mbit", sent),
        size,
        sent,
    )


def read_devices(path: Path, clients: Sequence[ClientId]) -> dict[str, Floats]:
    """Return each column of a table of devices, in the order of the clients."""
    position = {str(client): i for i, client in enumerate(clients)}
    with error_context("costs.trace"):
        table = open_table(path)
        found = [name for name in DEVICE_COLUMNS if name in table.header]
        if not found:
            raise BadInput(f"{path}: needs a column {', '.join(DEVICE_COLUMNS[:-1])} or "
                           f"{DEVICE_COLUMNS[-1]}")  # fmt: skip
        values = {name: np.full(len(clients), np.nan) for name in found}
        parsers = {"client": parse_name, **dict.fromkeys(found, _positive)}
        for place, (client, *numbers) in table.parsed(parsers):
            if client not in position:
                raise BadInput(
                    f"{table.at(place)}: {client!r} is not a client of this federation (its "
                    f"clients: {several(map(str, clients))}); leave the row out"
                )
            for name, number in zip(found, numbers, strict=True):
                values[name][position[client]] = number
        missing = np.isnan(values[found[0]])
        if missing.any():
            raise BadInput(
                f"{path} has no row of client {clients[int(missing.argmax())]!r}; add it"
            )
    return values


def _positive(text: str) -> float:
    value = parse_number(text.strip(" \t"), "a number; write one above 0")
    if not 1e-12 <= value <= 1e12:
        raise UnreadableCell(f"{quoted(text)} is not from 1e-12 to 1e12; write a number above 0")
    return value


class CostMeter:
    """Adds up the costs of a run's trainings, from the records of its log.

    A training counts when it ends: one download, one upload if its update was sent, and the power
    of the client for the seconds that it computed. Trainings in progress at the end, or when their
    client leaves, are not counted.
    """

    def __init__(self, settings: Costs, costs: ClientCosts, clients: Sequence[ClientId]) -> None:
        self._settings = settings
        self._costs = costs
        self._position = {client: i for i, client in enumerate(clients)}
        self._bytes = 0
        self._computed = 0.0  # seconds

    def observe(self, record: Record) -> None:
        """Add the next record of the log."""
        if not isinstance(record, ArrivalRecord | RejectedRecord | LostRecord):
            return
        size, update = self._costs.model_bytes, self._costs.update_bytes
        sent = not (isinstance(record, LostRecord) and record.reason == WENT_OFFLINE)
        self._bytes += size + update * sent
        client = self._position[record.client]
        busy = self._costs.transfer(client) if sent else self._costs.download.item(client)
        self._computed += max(0.0, record.time - record.start_time - record.paused - busy)

    def totals(self, time: float) -> dict[str, float]:
        """Return the costs so far, at this virtual time."""
        found = {"hours": time / 3600, "bytes": float(self._bytes)}
        watts, sending = self._settings.watts, self._settings.joules_per_mb
        if watts is not None or sending:
            found["joules"] = (watts or 0.0) * self._computed + sending * self._bytes / 1e6
        return found


def with_costs(clients: Clients, costs: ClientCosts) -> Clients:
    """Return the clients with the mean training times that follow from their costs."""
    return replace(clients, seconds=costs.seconds)
