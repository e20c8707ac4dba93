"""The embedded system: an own multi-step DSA draft backend with every refresh path, on CPU and CUDA."""
