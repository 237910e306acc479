"""Runs inside other runs: what they would say again and again is left out."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

LOGGER = "firth.finetuning"


@contextmanager
def quiet() -> Iterator[None]:
    """While it is entered, fine-tuning reports errors only."""
    logger = logging.getLogger(LOGGER)
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
