"""The rows of the bottleneck map, a few related ones per module."""
