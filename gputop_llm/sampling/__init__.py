"""From polls to frames: one thread per source, windows, bounded history."""
