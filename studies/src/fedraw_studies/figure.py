"""A number of the paper as it is printed there."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Figure:
    """A number of the paper: as printed, its values, and how many decimals they have.

    >>> Figure.of("45.2 / 45.0 / 45.5")
    Figure(printed='45.2 / 45.0 / 45.5', values=(45.2, 45.0, 45.5), decimals=1)
    >>> Figure.of("60.2 ± 6.5").values
    (60.2,)
    >>> Figure.of("75–77").values
    (75.0, 77.0)
    """

    printed: str
    values: tuple[float, ...]
    decimals: int

    @classmethod
    def of(cls, printed: str) -> Figure:
        means = printed.split("±", maxsplit=1)[0].replace("–", "/")
        numbers = [number.strip() for number in means.split("/")]
        _, _, after_point = numbers[0].partition(".")
        return cls(printed, tuple(map(float, numbers)), len(after_point))

    @property
    def sd(self) -> float | None:
        """The spread, where one is printed.

        >>> Figure.of("60.2 ± 6.5").sd
        6.5
        """
        _, found, spread = self.printed.partition("±")
        return float(spread) if found else None

    @property
    def is_by_seed(self) -> bool:
        return "/" in self.printed

    @property
    def rounding(self) -> float:
        """Half a unit of the last decimal, and a little for binary fractions."""
        return 0.5 * 10.0**-self.decimals * (1 + 1e-9)
