#!/usr/bin/env python3
"""Turns a public GLA or TransNormerLLM checkpoint (config.json and safetensors) into a checkpoint of Baton's, or back.

    convert.py gla-340M checkpoints/gla-340M                             a directory with config.json: to Baton
    convert.py runs/gla-tiny/checkpoints/step-00000500 public/gla-tiny   a checkpoint of Baton's: to safetensors
    baton eval --config checkpoints/gla-340M/config.cfg --checkpoint.load checkpoints/gla-340M --data.val FILE

Numbers keep their bits and dtype (float16 becomes float32 on the way to Baton) unless --dtype is given. The new directory
must not exist. A key, value or tensor that the other side does not have is refused by name.
"""
import argparse
import configparser
import json
import os
import pathlib
import shutil
import sys

os.environ.setdefault("HDF5_USE_FILE_LOCKING", "FALSE")  # the file may be on a filesystem without locks
import baton_checkpoint
import public_models
import safetensors_file

DTYPES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16", "float64": "F64"}


def config_text(model):
    """Section [model] as a configuration file."""
    text = {key: str(value).lower() if isinstance(value, bool) else value for key, value in model.items()}
    return "[model]\n" + "".join(f"{key} = {value}\n" for key, value in text.items())


def model_of_config(text):
    """Section [model] of a configuration file; every value as its default's type."""
    parser = configparser.ConfigParser(interpolation=None, delimiters="=", comment_prefixes="#")
    parser.read_string(text)
    model = {}
    for key, value in parser["model"].items():
        kind = type(public_models.DEFAULTS[key])
        model[key] = value == "true" if kind is bool else kind(value)
    width = model["width"]
    model["ffn"] = model["ffn"] or (width * 8 // 3 + 255) // 256 * 256
    if model["norm"] == "auto":
        model["norm"] = "simple_rmsnorm" if model["family"] == "tnl" else "rmsnorm"
    return model


def to_baton(source, target, dtype):
    tensors = safetensors_file.read_model(source)
    model = public_models.model_of(safetensors_file.read_json(source / "config.json"), tensors)
    weights = cast_all(public_models.weights_of(model, tensors), dtype)
    baton_checkpoint.write(target, weights, config_text(model))
    return weights


def to_safetensors(source, target, dtype, shard_bytes):
    tensors, config = baton_checkpoint.read(source)
    tensors, model = cast_all(tensors, dtype), model_of_config(config)
    names = {tag: name for name, tag in DTYPES.items()}
    public = public_models.config_of(model, names[next(iter(tensors.values())).dtype])
    weights = public_models.check(model, tensors)
    safetensors_file.write_model(target, weights, shard_bytes)
    (target / "config.json").write_text(json.dumps(public, indent=2) + "\n")
    return weights


def cast_all(tensors, dtype):
    return {name: safetensors_file.cast(name, x, dtype or x.dtype) for name, x in tensors.items()}


def convert(source, target, dtype, shard_bytes):
    """Into a directory that gets its name when it is whole."""
    if target.exists():
        raise ValueError(f"{target}: exists; give a directory that does not")
    tmp = target.with_name(target.name + ".tmp")
    tmp.mkdir(parents=True)
    try:
        if (source / "config.json").exists():
            weights = to_baton(source, tmp, dtype)
        else:
            weights = to_safetensors(source, tmp, dtype, shard_bytes)
        for path in tmp.iterdir():
            with open(path, "rb") as file:
                os.fsync(file.fileno())
        tmp.rename(target)
    except BaseException:
        shutil.rmtree(tmp)
        raise
    return weights


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=pathlib.Path)
    parser.add_argument("target", type=pathlib.Path)
    parser.add_argument("--dtype", choices=DTYPES, help="of all numbers (default: each tensor keeps its own)")
    parser.add_argument("--shard-gib", type=float, default=5, help="size of a safetensors file (default: 5)")
    args = parser.parse_args()
    try:
        weights = convert(args.source, args.target, DTYPES.get(args.dtype), int(args.shard_gib * 2**30))
    except (ValueError, OSError) as error:
        print(f"convert: {error}", file=sys.stderr)
        return 2
    print(f"{args.target}: {len(weights)} tensors, {sum(x.num_bytes for x in weights.values())} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
