"""GPU code on machines without a GPU: the kernels in a C++ compiler, and what they must give."""
