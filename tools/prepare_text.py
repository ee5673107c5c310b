#!/usr/bin/env python3
"""Splits a text into training and validation files and measures what a model of two bytes would reach.

    bible -f Gen1:1-Rev22:21 | tools/prepare_text.py - data      the King James Bible (Debian: bible-kjv, bible-kjv-text)
    tools/prepare_text.py book.txt data                          any other text

Writes OUTDIR/train.txt (the first 95%, to the end of a line), OUTDIR/val.txt (the rest) and OUTDIR/entropy.txt: the
entropy in nats of a byte of val.txt given the byte before it, by the pair counts of val.txt itself. A model that looks
back further than one byte has to be under it. Needs the standard library alone.
"""
import argparse
import collections
import math
import os
import sys

VAL_FRACTION = 0.05


def split(text):
    """Cuts at the first line end behind the training share, or right at it where no line ends."""
    at = len(text) - int(len(text) * VAL_FRACTION)
    line_end = text.find(b"\n", at - 1)
    if 0 <= line_end < len(text) - 1:
        at = line_end + 1
    return text[:at], text[at:]


def conditional_entropy(text):
    """H(byte | byte before) in nats: sum over pairs (a, b) of p(a, b) log(p(a) / p(a, b))."""
    pairs = collections.Counter(zip(text, text[1:]))
    firsts = collections.Counter(text[:-1])
    return sum(n * math.log(firsts[a] / n) for (a, _), n in pairs.items()) / (len(text) - 1)


def write_file(path, data):
    """Under a temporary name first, so that a file that exists is whole."""
    with open(path + ".tmp", "wb") as f:
        f.write(data)
    os.replace(path + ".tmp", path)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", help="the text, or - for standard input")
    parser.add_argument("outdir")
    args = parser.parse_args()
    try:
        text = sys.stdin.buffer.read() if args.file == "-" else open(args.file, "rb").read()
    except OSError as e:
        sys.exit(f"prepare_text: {args.file}: must be a file that can be read ({e.strerror})")
    train, val = split(text)
    if len(val) < 2:
        sys.exit(f"prepare_text: {args.file}: must hold enough text to be split, but has {len(text)} bytes")
    entropy = conditional_entropy(val)
    os.makedirs(args.outdir, exist_ok=True)
    write_file(os.path.join(args.outdir, "val.txt"), val)
    write_file(os.path.join(args.outdir, "entropy.txt"), f"{entropy:.4f}\n".encode())
    write_file(os.path.join(args.outdir, "train.txt"), train)
    print(f"{args.outdir}: train.txt {len(train)} bytes, val.txt {len(val)} bytes, "
          f"{entropy:.4f} nats a byte given the one before")


if __name__ == "__main__":
    main()
