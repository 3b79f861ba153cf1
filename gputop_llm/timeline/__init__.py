"""A capture as columns: one model for Nsight Systems, Kineto and our own window files.

Readers fill it and analyse nothing; analyses read it and know no file format.
"""
