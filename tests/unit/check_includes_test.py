#!/usr/bin/env python3
"""check_includes_test.py TOOL: plants each kind of fault in a tree of its own and expects the tool to find it."""
import pathlib
import subprocess
import sys
import tempfile

FAULTS = {
    "kernels/a.h": '#include "comm/group.h"',
    "comm/a.cpp": '#include "kernels/norm.h"',
    "runtime/a.cpp": '  #  include "model/model.h"',
    "model/a.cpp": '#include "launch/job.h"',
    "launch/a.cpp": "#include <mpi.h>",
    "model/b.h": '#include "kernels/cuda/tile.cuh"',
    "kernels/b.cu": "#include <hdf5.h>",
    "launch/train.cpp": "#include <boost/program_options.hpp>",
}


def run(tool, root):
    return subprocess.run([sys.executable, tool, root], capture_output=True, text=True)


def main():
    tool = sys.argv[1]
    for name, text in {"": "", **FAULTS}.items():
        with tempfile.TemporaryDirectory() as root:
            for folder in ("runtime", "comm", "kernels/cuda", "model", "launch"):
                (pathlib.Path(root) / folder).mkdir(parents=True)
            (pathlib.Path(root) / "model/good.cpp").write_text('#include "kernels/norm.h"\n#include <vector>\n')
            if name:
                (pathlib.Path(root) / name).write_text(f"// a file\n{text}\n")
            result = run(tool, root)
        if name and (result.returncode != 1 or name not in result.stdout):
            sys.exit(f"{text} in {name} was not found: {result.stdout}{result.stderr}")
        if not name and result.returncode != 0:
            sys.exit(f"a tree without faults was refused: {result.stdout}{result.stderr}")
    print(f"{len(FAULTS)} faults found")


if __name__ == "__main__":
    main()
