"""The fault catalogue: changes to a system that a check has to notice, and harmless ones that none may."""
