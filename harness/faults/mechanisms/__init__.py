"""General mechanisms that injections are made of; none knows a system."""
