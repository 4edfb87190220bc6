"""Room: inputs that make a network do what the given ones did not, by neuron coverage (DeepConcolic's and DeepGauge's criteria)."""

from holdfast.coverage.testgen import Tests, testgen

__all__ = ["Tests", "testgen"]
