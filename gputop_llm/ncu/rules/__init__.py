"""One rule a module: each looks at one launch and says what it finds, or nothing."""
