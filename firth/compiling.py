"""Loops that numba compiles, kept on disk for the next process. numba is not imported."""

from contextlib import suppress
from typing import Any


def cached_on_disk(function: Any) -> Any:
    """A compiled function that the next process need not compile again, where numba finds a folder to keep it in."""
    with suppress(RuntimeError):  # neither beside the file nor in the person's own cache
        function.enable_caching()
    return function
