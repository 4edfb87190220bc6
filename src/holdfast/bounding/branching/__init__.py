"""Branch and bound: subproblems of a region that their bounds do not decide are split further."""
