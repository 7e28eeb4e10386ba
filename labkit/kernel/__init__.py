# SPDX-License-Identifier: MIT
"""The running kernel: programs, maps, probes and the machine they run on."""
