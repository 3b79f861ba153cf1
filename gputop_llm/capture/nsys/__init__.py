"""Captures by Nsight Systems (nsys): in a session that a server was started in, or of the whole node."""
