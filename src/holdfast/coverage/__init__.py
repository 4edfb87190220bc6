"""Coverage-driven test generation: inputs that activate neurons in ways that the given inputs do not
(criteria of DeepConcolic and DeepGauge).
"""

from holdfast.coverage.testgen import Tests, testgen

__all__ = ["Tests", "testgen"]
