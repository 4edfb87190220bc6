"""`make bench`: every benchmark that needs nothing but this repository."""

from benchmarks import digits

if __name__ == "__main__":
    digits.main()
