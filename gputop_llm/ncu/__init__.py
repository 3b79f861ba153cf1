"""Reports of Nsight Compute: read into one neutral form, and judged kernel by kernel."""
