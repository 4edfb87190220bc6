"""Rate limits: a token bucket for each address."""

import time
from collections import OrderedDict
from collections.abc import Callable
from ipaddress import ip_address

# Limit for the number of stored addresses; the one idle for longest is dropped (chosen by hand).
MOST_ADDRESSES = 2**14


class RateLimiter:
    """Token buckets. rate: tokens per second; burst: capacity. rate 0: no limit."""

    def __init__(self, rate: float, burst: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.rate, self.burst, self.clock = rate, max(1, burst), clock
        # address -> number of tokens, and when it was computed
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, address: str) -> float:
        """Take one token and return 0; if there is none, return the seconds until there is one."""
        if not self.rate:
            return 0.0
        key, now = network_of(address), self.clock()
        tokens, then = self._buckets.pop(key, (float(self.burst), now))
        tokens = min(self.burst, tokens + (now - then) * self.rate)
        self._buckets[key] = (tokens - 1 if tokens >= 1 else tokens, now)
        if len(self._buckets) > MOST_ADDRESSES:
            self._buckets.popitem(last=False)
        return 0.0 if tokens >= 1 else (1 - tokens) / self.rate


def network_of(address: str) -> str:
    """The network that an address is counted for: an IPv4 address, or the upper half of an IPv6 address."""
    try:
        found = ip_address(address)
    except ValueError:
        return address
    return str(int(found) >> 64) if found.version == 6 and found.ipv4_mapped is None else str(found)
