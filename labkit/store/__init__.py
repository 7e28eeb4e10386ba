# SPDX-License-Identifier: MIT
"""What was measured, on disk."""
