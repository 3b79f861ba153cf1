"""Where readings come from. One module per source; none knows another."""
