"""`make bench`: the embedded networks on digits, and the anchors of certify at tier fast; nothing but this repository is needed."""

from benchmarks import digits
from benchmarks.certify.__main__ import BENCHMARKS
from benchmarks.rooms import main

if __name__ == "__main__":
    digits.main()
    main("certify", BENCHMARKS, ["anchors", "--tiers", "fast"])
