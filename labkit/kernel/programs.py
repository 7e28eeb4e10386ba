# SPDX-License-Identifier: MIT
"""BPF programs compiled and loaded by bcc."""

import atexit
import os
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from labkit import paths
from labkit.errors import CannotRunError, LabkitError

#: Lines of the compiler's or verifier's words that an error shows; the verifier may write millions.
_LAST_LINES = 12

_standard_error = threading.Lock()


def import_bcc() -> Any:
    """Return the module bcc, made to use labkit's own header tree.

    Raises
    ------
    CannotRunError
        Where bcc is missing, is the unrelated package of that name, or does not fit its library.
    """
    os.environ["BCC_KERNEL_SOURCE"] = str(paths.BPF)
    mend = "install Debian's python3-bpfcc: ./lab does so when it sets up"
    try:
        import bcc
    except (ImportError, OSError) as error:  # OSError where its library is missing
        raise CannotRunError(f"bcc cannot be imported ({error}); {mend}") from None
    if not hasattr(bcc, "BPF"):
        where = getattr(bcc, "__file__", None) or "?"
        raise CannotRunError(
            f"the module bcc at {where} is an unrelated package from PyPI; "
            f"pip uninstall bcc, then {mend}"
        )
    python_version = bcc.__version__.split("+")[0]
    library = _library_version()
    if library is not None and library != python_version:
        raise CannotRunError(
            f"bcc's Python part is {python_version} but its library is {library}; {mend}"
        )
    return bcc


def _library_version() -> str | None:
    """Return the version of the libbcc that this process has mapped, None where untold."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        name = line.rpartition("/")[2]
        if name.startswith("libbcc.so."):
            version = name.removeprefix("libbcc.so.")
            return version if version.count(".") == 2 else None
    return None


class Programs:
    """Compiled programs of one file and their maps; made by `compiled`."""

    def __init__(self, module: Any, raw_tracepoint: int) -> None:
        self._module = module
        self._raw_tracepoint = raw_tracepoint

    def raw_tracepoint(self, name: str) -> int:
        """Load the function `name` as a raw tracepoint program; return its descriptor.

        Raises
        ------
        LabkitError
            With the end of the verifier's words.
        """
        with _words_of_bcc(f"BPF program {name} was refused"):
            return int(self._module.load_func(name.encode(), self._raw_tracepoint).fd)

    def map_fd(self, name: str) -> int:
        """Return the descriptor of the map called `name` in the C file."""
        return int(self._module[name.encode()].map_fd)


@contextmanager
def compiled(source: Path, definitions: Mapping[str, int]) -> Iterator[Programs]:
    """Compile a BPF C file and make its maps; all of it is gone when the context ends.

    Parameters
    ----------
    source
        A file in ``bpf/``.
    definitions
        Whole numbers that the compiler gets as ``-D`` definitions. Nothing else reaches the C
        text: it is compiled as it stands in the file.

    Raises
    ------
    CannotRunError
        Where bcc cannot be used.
    LabkitError
        Where compiling or making a map fails, with the end of the compiler's words.
    """
    bcc = import_bcc()
    flags = [f"-D{name}={int(value)}" for name, value in definitions.items()]
    with _words_of_bcc(f"{source.name} did not compile"):
        module = bcc.BPF(text=source.read_bytes(), cflags=flags)
    try:
        yield Programs(module, bcc.BPF.RAW_TRACEPOINT)
    finally:
        # bcc keeps each object alive until the interpreter ends: unregister what we clean up.
        atexit.unregister(module.cleanup)
        atexit.unregister(module.donothing)
        module.cleanup()


@contextmanager
def _words_of_bcc(what_failed: str) -> Iterator[None]:
    """Turn bcc's exception and what its C part wrote to descriptor 2 into one error."""
    with _standard_error, tempfile.TemporaryFile() as words:
        sys.stderr.flush()
        saved = os.dup(2)
        os.dup2(words.fileno(), 2)
        failure = None
        try:
            yield
        except Exception as error:  # bcc raises bare Exception
            failure = error
        finally:
            os.dup2(saved, 2)
            os.close(saved)
        words.seek(max(0, words.seek(0, os.SEEK_END) - 8192))
        lines = words.read().decode(errors="replace").splitlines()
    if failure is not None:
        end = [line for line in lines if line.strip()][-_LAST_LINES:]
        raise LabkitError("\n".join([f"{what_failed}: {failure}", *end])) from failure
