"""The native kernels as typed functions over tensors: each checks what it is given, then makes one call."""
