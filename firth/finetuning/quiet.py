"""Runs inside other runs, whose repeated log messages are suppressed."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

LOGGER = "firth.finetuning"


@contextmanager
def quiet() -> Iterator[None]:
    """Inside `with`, fine-tuning logs errors only."""
    logger = logging.getLogger(LOGGER)
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
