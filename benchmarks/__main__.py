"""`make bench`: every benchmark that needs nothing but this repository."""

from benchmarks import digits
from benchmarks.certify.__main__ import main as certify

if __name__ == "__main__":
    digits.main()
    certify(["anchors", "--tiers", "fast"])
