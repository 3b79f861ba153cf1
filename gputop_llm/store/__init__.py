"""What the program keeps on disk between two runs."""
