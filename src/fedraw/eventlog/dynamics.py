"""Buffer statistics of an event log: presence, participation, staleness and weights."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from operator import mul
from typing import cast

from fedraw.core.types import ClientId
from fedraw.eventlog.records import ArrivalRecord

# Weights with a smaller relative difference count as equal.
TIE = 1e-12


class Dynamics:
    """Statistics over the arrivals of a log; shares are in percent, staleness in events.

    Undefined statistics are None. An arrival counts as rare if its client is rare at that time.

    BufPres         share of aggregations with a rare client in the buffer
    RarePart        share of arrivals that come from rare clients
    RareMeanStale   mean staleness of the rare clients' arrivals
    RareMaxStale    largest staleness of the rare clients' arrivals
    RareHoldsMax    share of aggregations in which only rare clients have the largest weight
    Rho, RhoMean    K Σ w² of an aggregation, largest and mean: 1 is uniform, K is one client alone
    """

    def __init__(self, rare: Collection[ClientId] = (), attacker: ClientId | None = None) -> None:
        self._rare = set(rare)
        self._any_rare = bool(self._rare)
        self._attacker = attacker
        self._arrivals = 0
        self._aggregations = 0
        self._present = 0
        self._rare_arrivals = 0
        self._rare_stale_sum = 0
        self._rare_stale_max: int | None = None
        self._rare_on_top = 0
        self._attacker_on_top = 0
        self._attacker_weights: list[float] = []
        self._rho_sum = 0.0
        self._rho_max: float | None = None

    def count_as(self, client: ClientId, rare: bool) -> None:
        """Set whether the client counts as rare from now on."""
        if rare:
            self._rare.add(client)
            self._any_rare = True
        else:
            self._rare.discard(client)

    def observe(self, arrival: ArrivalRecord) -> None:
        """Add one arrival."""
        self._arrivals += 1
        if arrival.client in self._rare:
            stale = arrival.staleness_events
            self._rare_arrivals += 1
            self._rare_stale_sum += stale
            if self._rare_stale_max is None or stale > self._rare_stale_max:
                self._rare_stale_max = stale
        if arrival.aggregated:
            self._aggregations += 1
            rare_present = not self._rare.isdisjoint(arrival.buffer)
            self._present += rare_present
            weights = arrival.weights
            # A user's own strategy may report no weights, or some that are not finite.
            if weights and len(weights) == len(arrival.buffer) and None not in weights:
                self._weigh(arrival.buffer, cast("Sequence[float]", weights), rare_present)

    def _weigh(
        self, buffer: Sequence[ClientId], weights: Sequence[float], rare_present: bool
    ) -> None:
        rho = len(weights) * sum(map(mul, weights, weights))
        self._rho_sum += rho
        if self._rho_max is None or rho > self._rho_max:
            self._rho_max = rho
        attacked = self._attacker is not None and self._attacker in buffer
        if not (rare_present or attacked):
            return  # neither a rare client nor the attacker can have the largest weight
        largest = max(weights) * (1 - TIE)
        top = {client for client, weight in zip(buffer, weights, strict=True) if weight >= largest}
        self._rare_on_top += top <= self._rare
        if attacked:
            self._attacker_on_top += top == {self._attacker}
            own = (w for c, w in zip(buffer, weights, strict=True) if c == self._attacker)
            self._attacker_weights.append(sum(own))

    def metrics(self) -> dict[str, float | None]:
        """Return all statistics by name."""
        arrived, longest, rare = self._rare_arrivals, self._rare_stale_max, self._any_rare
        claims = self._attacker_weights
        attacked = self._attacker is not None
        return {
            "BufPres": _percent(self._present, self._aggregations) if rare else None,
            "RarePart": _percent(arrived, self._arrivals) if rare else None,
            "RareMeanStale": self._rare_stale_sum / arrived if arrived else None,
            "RareMaxStale": None if longest is None else float(longest),
            "RareHoldsMax": _percent(self._rare_on_top, self._aggregations) if rare else None,
            "AttackerHoldsMax": _percent(self._attacker_on_top, self._aggregations)
            if attacked
            else None,
            "AttackerWeightMin": min(claims) if claims else None,
            "AttackerWeightMean": sum(claims) / len(claims) if claims else None,
            "AttackerWeightMax": max(claims) if claims else None,
            "Rho": self._rho_max,
            "RhoMean": None if self._rho_max is None else self._rho_sum / self._aggregations,
            "Aggregations": float(self._aggregations),
        }


def _percent(part: int, whole: int) -> float | None:
    return 100 * part / whole if whole else None
