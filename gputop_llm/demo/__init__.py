"""A simulated node: continuous batching, its GPUs and host, behind the real interfaces."""
