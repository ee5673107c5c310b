"""Baton's checkpoints, read and written as the program does: manifest.json with checksums, index.h5 with every tensor
whole, part-00000.h5 and so on with the rows."""
import json
import pathlib
import zlib

import h5py
import numpy as np

from safetensors_file import NUMPY, Tensor, cast

PART, INDEX, MANIFEST, CONFIG = "part-00000.h5", "index.h5", "manifest.json", "config.cfg"
DTYPES = {"float32": "F32", "float64": "F64", "bfloat16": "BF16"}
NO_CHECKSUM = "00000000"


def make_bfloat16():
    """2 bytes: sign 1, exponent 8 (bias 127), mantissa 7."""
    t = h5py.h5t.IEEE_F32LE.copy()
    t.set_fields(15, 7, 8, 0, 7)
    t.set_precision(16)
    t.set_size(2)
    t.set_ebias(127)
    return t


HDF5 = {"F32": h5py.h5t.IEEE_F32LE, "F64": h5py.h5t.IEEE_F64LE, "BF16": make_bfloat16()}


def checksum_of_file(path):
    value = 0
    with open(path, "rb") as file:
        while block := file.read(1 << 22):
            value = zlib.crc32(block, value)
    return f"{value:08x}"


def read_manifest(directory):
    """The manifest, once it and every file it names are found whole."""
    path = directory / MANIFEST
    if not path.exists():
        raise ValueError(f"{directory}: {MANIFEST} is missing, so it is no checkpoint")
    text = path.read_text()
    try:
        manifest = json.loads(text)
        stated = manifest["checksum"]
    except (ValueError, KeyError):
        raise ValueError(f"{path}: is damaged") from None
    if f"{zlib.crc32(text.replace(stated, NO_CHECKSUM, 1).encode()):08x}" != stated:
        raise ValueError(f"{path}: is damaged")
    if manifest["format"] != 1:
        raise ValueError(f"{path}: has format {manifest['format']}; this program reads 1")
    for file in manifest["files"]:
        part = directory / file["name"]
        if not part.exists():
            raise ValueError(f"{part}: is missing")
        if part.stat().st_size != file["bytes"] or checksum_of_file(part) != file["checksum"]:
            raise ValueError(f"{part}: is damaged")
    return manifest


def read(directory):
    """The weights, name -> Tensor, and the text of the configuration."""
    directory = pathlib.Path(directory)
    manifest = read_manifest(directory)
    tensors = {}
    for name, entry in manifest["tensors"].items():
        if not name.startswith("param/"):
            continue
        dtype, shape = DTYPES[entry["dtype"]], tuple(entry["shape"])

        def read_one(name=name, dtype=dtype, shape=shape):
            x = np.empty(shape, NUMPY[dtype])
            with h5py.File(directory / INDEX) as file:
                file[name].id.read(h5py.h5s.ALL, h5py.h5s.ALL, x, HDF5[dtype])
            return x

        tensors[name.removeprefix("param/")] = Tensor(dtype, shape, read_one)
    return tensors, "\n".join(manifest["config"])


def create(file, name, dtype, shape, source=None):
    """A dataset without time stamps, or a virtual one of the dataset of that name in the file `source`."""
    properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    properties.set_obj_track_times(False)
    space = h5py.h5s.create_simple(shape)
    if source:
        properties.set_fill_value(np.array(np.nan))
        properties.set_virtual(space, source.encode(), b"/" + name.encode(), space)
    link = h5py.h5p.create(h5py.h5p.LINK_CREATE)
    link.set_create_intermediate_group(True)
    return h5py.h5d.create(file.id, name.encode(), HDF5[dtype], space, properties, link)


def write_tensors(directory, tensors):
    versions = ("earliest", "v110")
    with h5py.File(directory / PART, "w", libver=versions) as part, h5py.File(directory / INDEX, "w",
                                                                             libver=versions) as index:
        for name, x in tensors.items():
            create(part, name, x.dtype, x.shape).write(h5py.h5s.ALL, h5py.h5s.ALL, np.ascontiguousarray(x.read()),
                                                       HDF5[x.dtype])
            create(index, name, x.dtype, x.shape, PART)
        for group, names in (("state", ["step"]), ("data", ["samples", "tokens"]), ("rng", ["seed"])):
            for name in names:
                index.require_group(group).attrs.create(name, 0, dtype="<i8")


def write(directory, weights, config):
    """Fills an empty directory with a checkpoint of weights alone, for checkpoint.load. float16 becomes float32."""
    tensors = {f"param/{name}": cast(name, x, "F32") if x.dtype == "F16" else x for name, x in weights.items()}
    write_tensors(directory, tensors)
    (directory / CONFIG).write_text(config)
    names = {dtype: name for name, dtype in DTYPES.items()}
    manifest = {
        "checksum": NO_CHECKSUM, "format": 1, "step": 0, "samples": 0, "tokens": 0, "seed": 0, "num_parts": 1,
        "files": [{"name": file, "bytes": (directory / file).stat().st_size,
                   "checksum": checksum_of_file(directory / file)}
                  for file in (PART, INDEX, CONFIG)],
        "tensors": {name: {"dtype": names[x.dtype], "shape": list(x.shape)} for name, x in sorted(tensors.items())},
        "config": config.split("\n")}
    text = json.dumps(manifest, indent=2) + "\n"
    (directory / MANIFEST).write_text(text.replace(NO_CHECKSUM, f"{zlib.crc32(text.encode()):08x}", 1))
