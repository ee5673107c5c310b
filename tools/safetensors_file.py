"""Models in the safetensors format: 8 bytes of header length, a JSON header, raw little-endian data; one file or several
with an index. Also what a tensor is to tools/convert.py."""
import json
import math
import pathlib
import struct
from typing import Callable, NamedTuple

import numpy as np

# bfloat16 is not a type of numpy: its bits are held as uint16.
NUMPY = {"F64": np.dtype("<f8"), "F32": np.dtype("<f4"), "F16": np.dtype("<f2"), "BF16": np.dtype("<u2")}
SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
MAX_HEADER_BYTES = 100 << 20


class Tensor(NamedTuple):
    dtype: str  # a key of NUMPY
    shape: tuple
    read: Callable  # () -> the array, of type NUMPY[dtype]

    @property
    def num_bytes(self):
        return math.prod(self.shape) * NUMPY[self.dtype].itemsize


def numbers(x, dtype):
    """What the elements of a tensor of that dtype stand for, as an array of numpy's floats."""
    return (x.astype("<u4") << 16).view("<f4") if dtype == "BF16" else x


def cast(name, tensor, dtype):
    """The same tensor in another dtype, rounded to nearest even; a number too large for it is refused."""

    def read():
        x = numbers(tensor.read(), tensor.dtype)
        with np.errstate(over="ignore"):
            y = x.astype("<f4" if dtype == "BF16" else NUMPY[dtype])
        if dtype == "BF16":
            bits = y.view("<u4")
            y = np.where(np.isnan(y), bits >> 16 | 0x40, (bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype("<u2")
        if not np.array_equal(np.isfinite(x), np.isfinite(numbers(y, dtype))):
            raise ValueError(f"{name}: holds numbers too large for {dtype}")
        return y

    return tensor if dtype == tensor.dtype else Tensor(dtype, tensor.shape, read)


def read_json(path):
    try:
        return json.loads(path.read_text())
    except ValueError as error:
        raise ValueError(f"{path}: is not JSON ({error})") from None


def read_file(path):
    """name -> Tensor; the data are read when they are asked for."""
    size = path.stat().st_size
    with open(path, "rb") as file:
        length = struct.unpack("<Q", file.read(8).ljust(8, b"\0"))[0]
        if not 2 <= length <= min(size - 8, MAX_HEADER_BYTES):
            raise ValueError(f"{path}: is not a safetensors file, or is cut short")
        try:
            header = json.loads(file.read(length))
        except ValueError:
            raise ValueError(f"{path}: its header is not JSON") from None
    header.pop("__metadata__", None)
    tensors, start = {}, 8 + length
    for name, entry in header.items():
        dtype, shape, (first, last) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
        if dtype not in NUMPY:
            raise ValueError(f"{path}: tensor {name} has dtype {dtype}; it must be one of {', '.join(NUMPY)}")

        def read(dtype=dtype, shape=shape, first=first):
            return np.fromfile(path, NUMPY[dtype], math.prod(shape), offset=start + first).reshape(shape)

        tensors[name] = Tensor(dtype, shape, read)
        if not 0 <= first <= last <= size - start or last - first != tensors[name].num_bytes:
            raise ValueError(f"{path}: tensor {name} of {last - first} bytes does not fit its shape, or the file is cut short")
    return tensors


def read_model(directory):
    """All tensors of model.safetensors, or of the files that the index names."""
    directory = pathlib.Path(directory)
    if not (directory / INDEX).exists():
        if not (directory / SINGLE).exists():
            raise ValueError(f"{directory}: holds neither {SINGLE} nor {INDEX}")
        return read_file(directory / SINGLE)
    places = read_json(directory / INDEX)["weight_map"]
    tensors = {}
    for file in sorted(set(places.values())):
        for name, tensor in read_file(directory / file).items():
            if places.get(name) != file:
                raise ValueError(f"{directory / file}: tensor {name} is not what {INDEX} says")
            tensors[name] = tensor
    for name, file in places.items():
        if name not in tensors:
            raise ValueError(f"{directory / file}: has no tensor {name}, which {INDEX} places there")
    return tensors


def write_file(path, tensors):
    header, offset = {"__metadata__": {"format": "pt"}}, 0
    for name, x in tensors.items():
        header[name] = {"dtype": x.dtype, "shape": list(x.shape), "data_offsets": [offset, offset + x.num_bytes]}
        offset += x.num_bytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for x in tensors.values():
            x.read().tofile(file)


def write_model(directory, tensors, shard_bytes):
    """One file where all fits into shard_bytes; else files of at most that (or of one tensor), and an index."""
    shards, room = [], 0
    for name, x in tensors.items():
        if not shards or x.num_bytes > room:
            shards.append({})
            room = shard_bytes
        shards[-1][name] = x
        room -= x.num_bytes
    if len(shards) == 1:
        return write_file(directory / SINGLE, tensors)
    places = {}
    for i, shard in enumerate(shards):
        file = f"model-{i + 1:05d}-of-{len(shards):05d}.safetensors"
        write_file(directory / file, shard)
        places.update(dict.fromkeys(shard, file))
    total = sum(x.num_bytes for x in tensors.values())
    index = {"metadata": {"total_size": total}, "weight_map": places}
    (directory / INDEX).write_text(json.dumps(index, indent=2) + "\n")
