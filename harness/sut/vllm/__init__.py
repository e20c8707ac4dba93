"""The released vLLM as a system under test: its draft decode loop and its metadata builders, unmodified."""
