# SPDX-License-Identifier: MIT
"""Where a measurement runs."""
