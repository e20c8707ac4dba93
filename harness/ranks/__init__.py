"""Several processes in step: what ranks have to agree on, and what becomes of one that does not."""
