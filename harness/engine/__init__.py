"""Engines that capture and replay: real CUDA graphs, and a CPU tape with the same contract."""
