#!/usr/bin/env python3
"""Checks the direction of knowledge between folders: what each may include, and what no file may.

    tools/check_includes.py [ROOT]
"""
import pathlib
import re
import sys

MAY_INCLUDE = {
    "runtime": {"runtime"},
    "kernels": {"kernels", "runtime"},
    "comm": {"comm", "runtime"},
    "model": {"model", "kernels", "comm", "runtime"},
    "launch": {"launch", "model", "kernels", "comm", "runtime"},
}
# Libraries that one place alone may know.
OWNERS = {
    "boost/": {"launch/options.cpp", "launch/commands.cpp", "launch/commands.h"},
    "hdf5.h": {"runtime/hdf5_access.h", "runtime/hdf5_file.cpp"},
    "mpi.h": "comm/",
    "nccl.h": "comm/",
    "cblas.h": "kernels/",
    "sentencepiece": {"runtime/tokenizer.cpp"},
}
INCLUDE = re.compile(r'^\s*#\s*include\s+["<]([^">]+)[">]', re.M)


def faults(root):
    for folder, allowed in MAY_INCLUDE.items():
        for path in sorted((root / folder).rglob("*")):
            if path.suffix not in {".h", ".cpp", ".cu", ".cuh"}:
                continue
            name = path.relative_to(root).as_posix()
            for included in INCLUDE.findall(path.read_text()):
                top = included.split("/")[0]
                if "/" in included and (root / top).is_dir() and top not in allowed:
                    yield f"{name}: {folder}/ may not include {included}"
                if included.endswith(".cuh") and path.suffix == ".h":
                    yield f"{name}: a .h is host C++ and may not include {included}"
                for library, owners in OWNERS.items():
                    owned = name.startswith(owners) if isinstance(owners, str) else name in owners
                    if included.startswith(library) and not owned:
                        yield f"{name}: only {owners} may include {included}"


def main():
    found = list(faults(pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ".").resolve()))
    print("\n".join(found) or "include directions hold")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
