# SPDX-License-Identifier: MIT
"""BPF programs compiled and loaded by bcc."""

import atexit
import os
import struct
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

from labkit import paths
from labkit.errors import CannotRunError, LabkitError
from labkit.kernel import bpf

#: Lines of the compiler's or verifier's words that an error shows; the verifier may write millions.
_LAST_LINES = 12
_WORDS_BYTES = 1 << 24

_AS_COMPILED: Mapping[str, int] = MappingProxyType({})

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


@dataclass(frozen=True)
class Without:
    """Helper calls that a control does without: all those on the map of this name in the C file.

    In place of each stands its result. So a control differs from its program in the calls alone:
    the arguments are made ready, and the compiler keeps the same things in the same registers.
    """

    map: str
    result: int = 0


class Programs:
    """Compiled programs of one file and their maps; made by `compiled`."""

    def __init__(self, module: Any, maps: Mapping[str, int] = _AS_COMPILED) -> None:
        self._module, self._maps = module, maps
        self._loaded: dict[tuple[str, Without | None], int] = {}

    def __enter__(self) -> Self:
        """Begin."""
        return self

    def __exit__(self, *_: object) -> None:
        """Let go of the programs that were loaded."""
        while self._loaded:
            os.close(self._loaded.popitem()[1])

    def with_maps(self, maps: Mapping[str, int]) -> "Programs":
        """Return the same programs with other maps, a context that ends by itself.

        For new maps without compiling again: one compiled program serves maps of many sizes, and
        of kinds that bcc does not know.

        Parameters
        ----------
        maps
            Descriptors of maps to use instead of those of these names in the C file.
        """
        return Programs(self._module, maps)

    def instructions(self, name: str) -> list[bytes]:
        """Return the instructions of the function `name` as compiled, 8 bytes each."""
        raw = bytes(self._module.dump_func(name.encode()))
        return [raw[at : at + 8] for at in range(0, len(raw), 8)]

    def raw_tracepoint(self, name: str, without: Without | None = None) -> int:
        """Load the function `name` as a raw tracepoint program; return its descriptor.

        Parameters
        ----------
        name
            Of the function in the C file.
        without
            Calls to leave out, which makes the program its own control.

        Raises
        ------
        LabkitError
            With the end of the verifier's words.
        """
        if (name, without) in self._loaded:
            return self._loaded[name, without]
        code = self.instructions(name)
        instead = {self.map_fd(one): descriptor for one, descriptor in self._maps.items()}
        left_out = self.map_fd(without.map) if without else None
        loaded = None
        for at, one in enumerate(code):
            operation, registers, _, immediate = struct.unpack("=BBhi", one)
            if operation == bpf.LOAD_64_BITS and registers >> 4 == bpf.MAP_BY_DESCRIPTOR:
                loaded = immediate
                code[at] = one[:4] + struct.pack("=i", instead.get(immediate, immediate))
            elif operation == bpf.CALL:
                # A call's map is loaded after the call before it: it is the first argument.
                if without and loaded == left_out:
                    code[at] = bpf.instruction(bpf.SET, immediate=without.result)
                loaded = None
        program = (bpf.PROG_TYPE_RAW_TRACEPOINT, b"".join(code))
        try:
            descriptor, _ = bpf.load_program(*program, name=name)
        except OSError as error:
            raise _refused(name, program, error) from None
        self._loaded[name, without] = descriptor
        return descriptor

    def map_fd(self, name: str) -> int:
        """Return the descriptor of the map called `name` in the C file."""
        return int(self._module[name.encode()].map_fd)


def _refused(name: str, program: tuple[int, bytes], error: OSError) -> LabkitError:
    """Return the error for a refused program, with the verifier's words: it is asked again."""
    words = ""
    try:
        descriptor, _ = bpf.load_program(*program, log_bytes=_WORDS_BYTES)
        os.close(descriptor)
    except OSError as again:
        words = str(again.filename)
    end = _last_lines(words)
    return LabkitError("\n".join([f"BPF program {name} was refused: {error.strerror}", *end]))


def _last_lines(words: str) -> list[str]:
    return [line for line in words.splitlines() if line.strip()][-_LAST_LINES:]


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
        with Programs(module) as loaded:
            yield loaded
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
        end = _last_lines(words.read().decode(errors="replace"))
    if failure is not None:
        raise LabkitError("\n".join([f"{what_failed}: {failure}", *end])) from failure
