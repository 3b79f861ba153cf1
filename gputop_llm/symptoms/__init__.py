"""The bottleneck map, live: pure rules over the newest frames, with evidence.

No source, clock or process is touched here: frames and thresholds in, symptoms out.
"""
