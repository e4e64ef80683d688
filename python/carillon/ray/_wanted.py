"""How many workers the metric `carillon_devices_wanted` asks for. Pure."""

from __future__ import annotations

import math
import re

# With the end of its line: a text that broke off has none.
SAMPLE = re.compile(r"^carillon_devices_wanted(?:\{[^}]*\})?[ \t]+(\S+)(?:[ \t]+\S+)?[ \t]*\r?\n", re.M)
MOST_DEVICES = 100_000


def devices_wanted(metrics: str) -> int:
    """Of all sub-clusters together. ValueError: what is wrong."""
    found = SAMPLE.findall(metrics)
    if not found:
        raise ValueError("there is no carillon_devices_wanted")
    total = 0.0
    for text in found:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not 0 <= value <= MOST_DEVICES:
            raise ValueError(f"carillon_devices_wanted is {text}")
        total += value
    return math.ceil(total)


def largest(told: list[int | str]) -> int:
    """The largest number that a scheduler gave. `told` has, for each scheduler, its number or why it has none. Only the
    leader has a number. If two schedulers claim to lead, the larger number counts: too few workers lose requests.
    ValueError: no scheduler has a number, and why."""
    if numbers := [each for each in told if isinstance(each, int)]:
        return max(numbers)
    raise ValueError("; ".join(map(str, told)))


def workers_wanted(devices: int, devices_of_a_worker: int, least: int, most: int) -> int:
    return min(most, max(least, -(-devices // max(1, devices_of_a_worker))))
