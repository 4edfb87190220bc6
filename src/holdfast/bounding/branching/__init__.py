"""Branch and bound: parts of a region that are not settled by their bounds are cut further."""
