"""The engine's own profiler, started and ended over HTTP: bounded, told where to write, proven by what it wrote."""
