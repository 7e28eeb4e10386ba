# SPDX-License-Identifier: MIT
"""Tables, plots and pages made of runs."""
