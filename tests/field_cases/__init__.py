"""Field cases from end to end: NVML's answers, a /proc and metrics pages go in; JSON, text and screens come out."""
