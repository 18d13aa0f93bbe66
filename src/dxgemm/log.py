"""The logger `dxgemm`: each choice (DEBUG), each build and stand-in (INFO), bad wheels (WARNING).

Python prints warnings alone until a program configures logging, or `DXGEMM_LOG` names the level
from which on it prints to standard error.
"""

from __future__ import annotations

import logging
import os

from dxgemm.errors import SettingError

LEVELS = ("debug", "info", "warning")

logger = logging.getLogger("dxgemm")


def print_from(level: str) -> None:
    """Print to standard error what has this level or a higher one.

    Raises:
        SettingError: the level is none of `LEVELS`.
    """
    if level not in LEVELS:
        raise SettingError(f"DXGEMM_LOG is {level!r}; it can be {', '.join(LEVELS)}.")
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("dxgemm: %(message)s"))
    logger.addHandler(handler)
    logger.setLevel(level.upper())


if os.environ.get("DXGEMM_LOG"):
    print_from(os.environ["DXGEMM_LOG"])
