"""A capture as columns: one model for Nsight Systems, Kineto and our own window files.

Readers fill it and analyse nothing; analyses read it and know no file format.
"""

import os

# NumPy's OpenBLAS begins with a thread for each core: 2 s of CPU on a node with 16, for nothing that is used here.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
