"""One case a module: what is wrong, the truth about it, and the code with and without it."""
