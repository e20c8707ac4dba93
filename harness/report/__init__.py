"""Reports of a finished run: what was run, what was found, for people and for programs."""
