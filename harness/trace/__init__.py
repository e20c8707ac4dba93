"""Recorded traffic: read, described, cut, driven through any system, shrunk to a case."""
