"""The released SGLang as a system under test: its own classes, driven as its runners drive them."""
