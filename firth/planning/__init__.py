"""A plan before the bill: text, a recipe and machines in; tokens, hours, memory and what limits them out.

The cost model (`cost.py`) has few terms, each with a meaning: matrix products, bytes that move, the optimizer. Its
numbers come from runs that were measured (docs/results.md); `probe.py` measures the user's own machine. Several GPUs
and machines (`communication.py`) are a projection.
"""
