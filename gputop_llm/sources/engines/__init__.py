"""One module per engine: parsed metric families in, an engine-neutral reading out."""
