"""From a timeline to findings: one family per module, pure; a healthy capture gives a healthy verdict."""
