# SPDX-License-Identifier: MIT
"""Errors that a person sees: one line, no traceback, an exit status of their own."""


class LabkitError(Exception):
    """Something failed; the message says what, with which value, and what mends it."""

    exit_status = 1


class UsageError(LabkitError):
    """A name or value that is not accepted; refused before anything is loaded."""

    exit_status = 2


class CannotRunError(LabkitError):
    """Nothing of the experiment can run here; the message says why and where it could."""

    exit_status = 3
