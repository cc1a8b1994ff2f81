"""Each client's share of all arrivals, while clients join and leave."""

from __future__ import annotations

from dataclasses import dataclass, field

from fedraw.core.types import ClientId


@dataclass(eq=False)
class Participation:
    """Counts of arrivals; a_i = (c_i + 1) / (t_i + N) estimates a client's share of all arrivals.

    c_i is the number of arrivals of client i, and t_i that of all clients while i was a member. A
    newcomer therefore begins with the average share 1/N, like every client at the start, and a
    client that returns keeps its record: the time that it was away does not count.

    >>> seen = Participation()
    >>> for client in ("a", "a", "b"):
    ...     seen.count(client)
    >>> [seen.share(client, members=2) for client in ("a", "b")]  # 3/5 and 2/5
    [0.6, 0.4]
    >>> seen.join("c"); seen.share("c", members=3)
    0.3333333333333333
    """

    total: int = 0
    arrivals: dict[ClientId, int] = field(default_factory=dict)
    since: dict[ClientId, int] = field(default_factory=dict)  # `total` when t_i was 0, if not 0
    away: dict[ClientId, int] = field(default_factory=dict)  # t_i of the clients that have left

    def count(self, client: ClientId) -> None:
        """Count one arrival."""
        self.total += 1
        self.arrivals[client] = self.arrivals.get(client, 0) + 1

    def join(self, client: ClientId) -> None:
        """Begin to count for a newcomer, or continue for a client that returns."""
        self.since[client] = self.total - self.away.pop(client, 0)

    def leave(self, client: ClientId) -> None:
        """Keep the client's t_i until it returns."""
        self.away[client] = self.total - self.since.pop(client, 0)

    def share(self, client: ClientId, members: int) -> float:
        """Return a_i of a member of a federation with `members` members."""
        seen = self.total - self.since.get(client, 0)
        return (self.arrivals.get(client, 0) + 1) / (seen + members)
