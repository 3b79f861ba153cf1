"""The terminal app. It renders frames; it holds no thresholds and reads no source."""
