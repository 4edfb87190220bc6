"""How often an address may ask: a bucket of tokens each, filled at a steady rate."""

import time
from collections import OrderedDict
from collections.abc import Callable
from ipaddress import ip_address

MOST = 2**14  # addresses that are remembered; the one that was quiet the longest is forgotten first


class Rates:
    """rate: tokens a second; burst: what a bucket holds. rate 0: nobody waits."""

    def __init__(self, rate: float, burst: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.rate, self.burst, self.clock = rate, max(1, burst), clock
        self._buckets: OrderedDict[str, tuple[float, float]] = (
            OrderedDict()
        )  # address -> tokens, and when they were counted

    def take(self, address: str) -> float:
        """One token -> 0; or the seconds until there is one, and none is taken."""
        if not self.rate:
            return 0.0
        key, now = network_of(address), self.clock()
        tokens, then = self._buckets.pop(key, (float(self.burst), now))
        tokens = min(self.burst, tokens + (now - then) * self.rate)
        self._buckets[key] = (tokens - 1 if tokens >= 1 else tokens, now)
        if len(self._buckets) > MOST:
            self._buckets.popitem(last=False)
        return 0.0 if tokens >= 1 else (1 - tokens) / self.rate


def network_of(address: str) -> str:
    """Whom an address is counted for: an IPv4 address; of an IPv6 address the half that its owner did not choose."""
    try:
        found = ip_address(address)
    except ValueError:
        return address
    return str(int(found) >> 64) if found.version == 6 and found.ipv4_mapped is None else str(found)
