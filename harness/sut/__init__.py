"""Systems under test: the embedded backend and released packages, behind one small protocol."""
