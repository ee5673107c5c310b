#!/usr/bin/env python3
"""Compares Baton with the fla package on a GPU: a small GLA model that fla makes is converted, and both compute the same
tokens in bfloat16. Logits, loss and final states of the two must be as near as `baton replay` asks.

    compare_fla.py build/baton
    compare_fla.py build/baton --gradients      fla tunes its backward kernels first, for minutes

Needs a CUDA device, torch, fla (flash-linear-attention and fla-core) with transformers and einops, and h5py.
"""
import argparse
import pathlib
import subprocess
import sys
import tempfile

import h5py
import numpy as np
import torch
import torch.nn.functional as F
from fla.models import GLAConfig, GLAForCausalLM

import baton_checkpoint
import safetensors_file

BATCH, TOKENS = 2, 300  # not a multiple of any chunk


def make_model():
    """Head dims K = 256, V = 512; every weight is far from where it has no effect."""
    torch.manual_seed(1)
    config = GLAConfig(hidden_size=1024, num_hidden_layers=2, num_heads=2, intermediate_size=768, vocab_size=1000,
                       initializer_range=0.05)
    model = GLAForCausalLM(config)
    with torch.no_grad():
        for p in model.parameters():
            if p.dim() == 1:  # norms are ones, biases zeros
                p += 0.2 * torch.randn_like(p)
    return model.to("cuda", torch.bfloat16).eval()


def compute(model, tokens, targets, with_gradients):
    """fla's answers as name -> array, in the layout of a golden file."""
    with torch.no_grad():
        states = model(tokens, use_cache=True).past_key_values
    with torch.set_grad_enabled(with_gradients):
        logits = model(tokens, use_cache=False).logits.float()
        loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-1)
    answers = {"logits": logits, "loss": loss}
    for l in range(model.config.num_hidden_layers):
        state = states[l]["recurrent_state"]  # [B, H, V, K] in some versions
        answers[f"state/{l}"] = state if state.shape[-1] > state.shape[-2] else state.mT
    if with_gradients:
        loss.backward()
        answers.update({f"grad/{name}": p.grad for name, p in model.named_parameters()})
    return {name: x.detach().float().cpu().numpy() for name, x in answers.items()}


def write_case(path, config, checkpoint, tokens, targets, answers):
    """A file for `baton replay`, with the weights that the converted checkpoint holds."""
    weights, _ = baton_checkpoint.read(checkpoint)
    with h5py.File(path, "w") as file:
        file.attrs.update(family="gla", layers=config.num_hidden_layers, heads=config.num_heads, width=config.hidden_size,
                          ffn=config.intermediate_size, vocab=config.vocab_size, low_rank=16, norm_eps=config.norm_eps)
        file["tokens"], file["targets"] = tokens.cpu().numpy(), targets.cpu().numpy()
        for name, x in weights.items():
            file[f"param/{name}"] = np.float32(safetensors_file.numbers(x.read(), x.dtype))
        file.create_group("grad")
        for name, x in answers.items():
            file[name] = x


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("baton", help="the program")
    parser.add_argument("--gradients", action="store_true", help="compare gradients, too")
    args = parser.parse_args()
    model = make_model()
    tokens = torch.randint(0, model.config.vocab_size, (BATCH, TOKENS), device="cuda")
    targets = F.pad(tokens[:, 1:], (0, 1), value=-1)
    answers = compute(model, tokens, targets, args.gradients)
    with tempfile.TemporaryDirectory() as scratch:
        scratch = pathlib.Path(scratch)
        model.save_pretrained(scratch / "public")
        convert = pathlib.Path(__file__).parent / "convert.py"
        subprocess.run([sys.executable, convert, scratch / "public", scratch / "checkpoint"], check=True)
        write_case(scratch / "case.h5", model.config, scratch / "checkpoint", tokens, targets, answers)
        done = subprocess.run([args.baton, "replay", scratch / "case.h5", "--device", "cuda", "--dtype", "bfloat16"],
                              capture_output=True, text=True)
    lines = {line.split()[0]: line for line in done.stdout.splitlines() if line.startswith("/")}
    compared = [lines.get(f"/{name}", f"/{name} FAILED: baton did not compute it") for name in answers]
    print("\n".join(compared), done.stderr, sep="\n", end="")
    failed = sum(not line.endswith(" ok") for line in compared)
    print(f"{len(compared)} tensors compared with fla in bfloat16, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
