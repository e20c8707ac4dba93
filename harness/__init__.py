"""Correctness harness for attention metadata under CUDA-graph capture and replay."""

__version__ = "0.1.0"
