"""Load models: seeded traffic that looks like a server's."""
