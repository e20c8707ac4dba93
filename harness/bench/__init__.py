"""Figures: of the harness itself on a CPU (`cpu`), and of systems' refreshes on a GPU (`gpu`)."""
