# SPDX-License-Identifier: MIT
"""How to measure: rounds, statistics and models of cost."""
