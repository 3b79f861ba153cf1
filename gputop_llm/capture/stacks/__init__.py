"""The Python side of a target: stacks of all its ranks, and samples of them, read from outside by py-spy."""
