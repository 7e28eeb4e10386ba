# SPDX-License-Identifier: MIT
"""Figures from patch mails, which reports show beside ours."""

import pandas as pd

from labkit import paths
from labkit.experiments._experiment import Published


def published_rows(described: Published) -> pd.DataFrame:
    """Return the published rows that a plot draws, ascending on the horizontal axis."""
    frame = pd.read_csv(paths.PUBLISHED / described.file, comment="#")
    for column, value in described.where.items():
        frame = frame[frame[column] == value]
    if described.share_of:
        frame = frame.assign(**{described.y: frame[described.y] / frame[described.share_of]})
    # A zero is what the mail's three decimals left of a small rate.
    return frame[frame[described.y] > 0].sort_values(described.x)
