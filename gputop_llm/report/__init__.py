"""The same facts without a terminal: JSON and text."""
