"""Quiet: libraries that log what their errors say anyway, or what nobody asked, kept from it for a while."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quiet_loggers(up_to: int = logging.CRITICAL) -> Iterator[None]:
    """Inside, nothing is logged up to this level; afterwards as before. Errors still raise."""
    before = logging.root.manager.disable
    logging.disable(up_to)
    try:
        yield
    finally:
        logging.disable(before)
