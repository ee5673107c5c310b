#!/usr/bin/env python3
"""Lists a dump or a checkpoint, or draws the norms of a dumped state over the positions of the sequence.

    view_dump.py runs/gla-tiny/dumps/step-00000010.h5
    view_dump.py runs/gla-tiny/checkpoints/step-00001000
    view_dump.py DUMP --plot layer.3/state --row 0 --out state.png
"""
import argparse
import os
import sys

os.environ.setdefault("HDF5_USE_FILE_LOCKING", "FALSE")  # the file may be on a filesystem without locks
import h5py
import numpy as np


def contents(file):
    """Paths of all datasets, in name order."""
    paths = []
    file.visititems(lambda path, item: paths.append(path) if isinstance(item, h5py.Dataset) else None)
    return sorted(paths)


def show(file):
    groups = [file] + [group for group in file.values() if isinstance(group, h5py.Group)]
    for group in groups:
        for key, value in group.attrs.items():
            print(f"{group.name.rstrip('/')}/{key} = {value}")
    print(f"{'dataset':<56} {'shape':<24} {'rms':>12} {'largest':>12}  not finite")
    for path in contents(file):
        x = file[path][()].astype(np.float64)
        finite = x[np.isfinite(x)]
        rms = np.sqrt(np.mean(finite**2)) if finite.size else 0.0
        largest = np.abs(finite).max() if finite.size else 0.0
        print(f"{path:<56} {str(list(x.shape)):<24} {rms:12.4e} {largest:12.4e}  {x.size - finite.size}")


def plot(file, path, row, out):
    import matplotlib
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    if path not in file or file[path].ndim < 4 or "grid" not in file.attrs:
        sys.exit(f"{file.filename} has no {path} of shape [B, num_grid, H, ...]; a dump has: {' '.join(contents(file))}")
    if not 0 <= row < file[path].shape[0]:
        sys.exit(f"--row {row} must be below the batch size {file[path].shape[0]}")
    x = file[path][row].astype(np.float64)
    norms = np.sqrt((x.reshape(*x.shape[:2], -1) ** 2).sum(-1))
    positions = np.arange(x.shape[0]) * file.attrs["grid"]
    figure, axes = plt.subplots(figsize=(9, 4), layout="constrained")
    for head in range(norms.shape[1]):
        axes.plot(positions, norms[:, head], label=f"head {head}")
    axes.set(xlabel="position", ylabel="Frobenius norm", title=f"{path}, step {file.attrs['step']}, row {row}")
    axes.legend(ncols=max(1, norms.shape[1] // 8), fontsize="small")
    figure.savefig(out, dpi=120)
    print(out)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", help="a dump, or the directory of a checkpoint")
    parser.add_argument("--plot", metavar="DATASET", help="draw the norm of each head over the positions")
    parser.add_argument("--row", type=int, default=0, help="batch row that is drawn")
    parser.add_argument("--out", default="state.png", help="picture that --plot writes")
    args = parser.parse_args()
    path = os.path.join(args.path, "index.h5") if os.path.isdir(args.path) else args.path
    try:
        file = h5py.File(path, "r")
    except OSError as error:
        sys.exit(f"{path} cannot be opened: {error}")
    with file:
        if args.plot:
            plot(file, args.plot.strip("/"), args.row, args.out)
        else:
            show(file)


if __name__ == "__main__":
    main()
