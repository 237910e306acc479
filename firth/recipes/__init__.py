"""Whole runs with names."""
