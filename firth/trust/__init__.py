"""Answers people can trust: label errors, weak slices, two models compared, drift between old and new texts.

Each module is used by itself: `from firth.trust.drift import find_drift`.
"""
