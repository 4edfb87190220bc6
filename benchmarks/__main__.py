"""`make bench`: the embedded digits networks, then `certify anchors` at tier fast.

Needs no data besides this repository.
"""

from benchmarks import digits
from benchmarks.certify.__main__ import BENCHMARKS
from benchmarks.command_line import main

if __name__ == "__main__":
    digits.main()
    main("certify", BENCHMARKS, ["anchors", "--tiers", "fast"])
