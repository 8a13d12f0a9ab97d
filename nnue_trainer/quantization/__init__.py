"""From floating point to integers: scales, ranges, rounding."""
