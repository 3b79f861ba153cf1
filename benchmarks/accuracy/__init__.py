"""How often the product names the known causes of the lab's cases: the accuracy benchmark."""
