# SPDX-License-Identifier: MIT
"""labkit: measure BPF on real kernels, from JupyterLab or in batch.

Everything public lives in `labkit.api` and is imported at first use, so that ``import labkit``
costs next to nothing.
"""

from typing import Any

__version__ = "0.1.0"
__all__ = ["Run", "compare", "load", "measure", "runs"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from labkit import api

        return getattr(api, name)
    raise AttributeError(f"module 'labkit' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
