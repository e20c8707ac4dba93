"""Soaks: very many replays of one system, in constant memory."""
