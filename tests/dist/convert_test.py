"""tools/convert.py: public checkpoints to Baton's and back, bit for bit, and what is refused."""
import json
import re
import subprocess
import sys

import driver
import numpy as np

TOOLS = driver.pathlib.Path(__file__).resolve().parents[2] / "tools"
sys.path.insert(0, str(TOOLS))
import safetensors_file
from safetensors_file import Tensor

GLA = {"model_type": "gla", "hidden_size": 32, "num_hidden_layers": 2, "num_heads": 2, "expand_k": 0.5, "expand_v": 1,
       "intermediate_size": 48, "hidden_act": "swish", "norm_eps": 1e-6, "vocab_size": 256, "initializer_range": 0.02,
       "tie_word_embeddings": False, "torch_dtype": "bfloat16", "num_kv_heads": None, "use_short_conv": False,
       "fuse_norm": True}
TNL = {"model_type": "transnormer", "decoder_embed_dim": 32, "hidden_dim": 32, "decoder_layers": 3,
       "decoder_attention_heads": 4, "glu_dim": 40, "linear_use_lrpe_list": [1, 0, 1], "norm_type": "simplermsnorm",
       "linear_act_fun": "silu", "vocab_size": 256, "no_scale_embedding": False, "tie_word_embeddings": False}


def gla_shapes(layers=2, D=32, F=48):
    shapes = {"model.embeddings.weight": (256, D), "model.norm.weight": (D,), "lm_head.weight": (256, D)}
    for l in range(layers):
        layer = f"model.layers.{l}."
        shapes.update({layer + "attn." + name: shape for name, shape in {
            "q_proj.weight": (D // 2, D), "k_proj.weight": (D // 2, D), "v_proj.weight": (D, D), "g_proj.weight": (D, D),
            "gk_proj.0.weight": (16, D), "gk_proj.1.weight": (D // 2, 16), "gk_proj.1.bias": (D // 2,),
            "g_norm_swish_gate.weight": (D // 2,), "o_proj.weight": (D, D)}.items()})
        shapes.update({layer + "attn_norm.weight": (D,), layer + "mlp_norm.weight": (D,),
                       layer + "mlp.gate_proj.weight": (F, D), layer + "mlp.up_proj.weight": (F, D),
                       layer + "mlp.down_proj.weight": (D, F)})
    return shapes


def tnl_shapes(layers=3, D=32, F=40):
    shapes = {"model.embed_tokens.weight": (256, D), "lm_head.weight": (256, D)}
    for l in range(layers):
        layer = f"model.layers.{l}."
        shapes.update({layer + "token_mixer.qkvu_proj.weight": (4 * D, D), layer + "token_mixer.out_proj.weight": (D, D),
                       layer + "channel_mixer.l1.weight": (F, D), layer + "channel_mixer.l2.weight": (F, D),
                       layer + "channel_mixer.l3.weight": (D, F)})
        if l != 1:
            shapes[layer + "token_mixer.lrpe.theta"] = (4, 1, D // 4)
    return shapes


def random_weights(shapes, dtype, seed=0):
    """Any bits that are finite numbers of that dtype."""
    draw = np.random.default_rng(seed)

    def tensor(shape):
        x = draw.normal(scale=0.3, size=shape).astype("<f4")
        return (x.view("<u4") >> 16).astype("<u2") if dtype == "BF16" else x.astype(safetensors_file.NUMPY[dtype])

    return {name: Tensor(dtype, shape, lambda x=tensor(shape): x) for name, shape in shapes.items()}


class Convert(driver.Test):
    def convert(self, *args):
        return subprocess.run([sys.executable, TOOLS / "convert.py", *map(str, args)], cwd=self.dir, capture_output=True,
                              text=True)

    def converted(self, source, target, *args):
        done = self.convert(source, target, *args)
        self.assertEqual(done.returncode, 0, done)
        return self.dir / target

    def public(self, name, config, weights, shard_bytes=1 << 30):
        directory = self.dir / name
        directory.mkdir()
        (directory / "config.json").write_text(json.dumps(config))
        safetensors_file.write_model(directory, weights, shard_bytes)
        return directory

    def assert_same_weights(self, directory, weights):
        found = safetensors_file.read_model(directory)
        self.assertEqual(found.keys(), weights.keys())
        for name, x in weights.items():
            self.assertEqual((found[name].dtype, found[name].shape), (x.dtype, x.shape), name)
            self.assertEqual(found[name].read().tobytes(), x.read().tobytes(), name)

    def eval(self, checkpoint, config):
        done = self.run_baton(0, "eval", "--config", config, "--data.val", "val.txt", "--data.seq_len", 96, "--eval.tokens",
                              2000, "--checkpoint.load", checkpoint, "--eval.by_position", "--run.threads", 1)
        self.assertEqual(done.code, 0, done)
        return done.out.replace(str(checkpoint), "CHECKPOINT")

    def test_public_round_trip(self):
        for config, shapes in ((GLA, gla_shapes()), (TNL, tnl_shapes())):
            for dtype, flags, num_files in (("BF16", ["--shard-gib", 20000 / 2**30], 4), ("F32", [], 1),
                                            ("F16", ["--dtype", "float16"], 1)):
                name = config["model_type"] + dtype
                with self.subTest(name):
                    weights = random_weights(shapes, dtype)
                    self.public(name, config, weights, shard_bytes=30000)
                    checkpoint = self.converted(name, f"baton-{name}")
                    back = self.converted(checkpoint, f"{name}-back", *flags)
                    self.assertGreaterEqual(len(list(back.glob("*.safetensors"))), num_files)
                    self.assertEqual((back / safetensors_file.INDEX).exists(), num_files > 1)
                    self.assert_same_weights(back, weights)
                    again = self.converted(back, f"baton-{name}-again")
                    self.assert_same_tensors(checkpoint, again)
                    if dtype == "BF16":
                        text = self.eval(checkpoint, checkpoint / "config.cfg")
                        self.assertIn("(step 0): loss ", text)
                        self.assertEqual(text, self.eval(again, again / "config.cfg"))

    def test_baton_round_trip(self):
        """Training's checkpoint of several parts: the same weights and the same loss after the way there and back."""
        for family in ("gla", "tnl"):
            self.train(3, family, model__family=family, model__vocab=300)
            trained = self.checkpoints(family)[-1]
            public = self.converted(trained, f"public-{family}")
            back = self.converted(public, f"back-{family}")
            a, b = driver.tensors(trained), driver.tensors(back)
            self.assertEqual({name for name in a if name.startswith("param/")}, set(b))
            for name, x in b.items():
                self.assertEqual(x.tobytes(), a[name].tobytes(), name)
            losses = [re.search(r"\(step \d+\): (.*)", self.eval(checkpoint, config), re.S)[1] for checkpoint, config in (
                (trained, self.dir / family / "config.cfg"), (back, back / "config.cfg"))]
            self.assertEqual(losses[0], losses[1])
            half = self.converted(trained, f"half-{family}", "--dtype", "bfloat16")
            for name, x in safetensors_file.read_model(half).items():
                exact = a[f"param/{name}"]
                self.assertEqual(x.dtype, "BF16")
                rounded = safetensors_file.numbers(x.read(), "BF16")
                self.assertLessEqual(np.abs(rounded - exact).max(), np.abs(exact).max() / 256, name)

    def test_first_form_of_gla(self):
        """Gate and up in one matrix, other names of the embedding, the norms and the epsilon; tied embeddings."""
        weights = random_weights(gla_shapes(), "BF16")
        del weights["lm_head.weight"]
        tied = {**GLA, "tie_word_embeddings": True}
        first = dict(weights)
        for l in range(2):
            gate, up = (first.pop(f"model.layers.{l}.mlp.{name}_proj.weight").read() for name in ("gate", "up"))
            both = np.concatenate([gate, up])
            first[f"model.layers.{l}.mlp.gate_proj.weight"] = Tensor("BF16", both.shape, lambda both=both: both)
        first = {name.replace("embeddings", "embed_tokens").replace("g_norm_swish_gate", "g_norm"): x
                 for name, x in first.items()}
        old = {key: value for key, value in tied.items() if key not in ("norm_eps", "tie_word_embeddings")}
        self.public("today", tied, weights)
        self.public("first", {**old, "rms_norm_eps": 1e-6, "share_conv_kernel": True}, first)
        self.assert_same_tensors(self.converted("today", "a"), self.converted("first", "b"))
        self.assertEqual((self.dir / "a/config.cfg").read_text(), (self.dir / "b/config.cfg").read_text())

    def refuse(self, source, *words, flags=()):
        before = driver.files_of(self.dir)
        done = self.convert(source, "refused", *flags)
        self.assertEqual(done.returncode, 2, done)
        self.assertEqual(len(done.stderr.splitlines()), 1, done)
        for word in words:
            self.assertIn(word, done.stderr)
        self.assertTrue(driver.files_of(self.dir) == before, done)

    def test_refused_configurations(self):
        for base, shapes, cases in (
                (GLA, gla_shapes(), {"model_type": "mamba", "hidden_act": "gelu", "num_kv_heads": 1, "use_short_conv": True,
                                     "feature_map": "relu", "use_output_gate": False, "clamp_min": -3, "use_gv": True,
                                     "elementwise_affine": False, "attn": {"layers": [0]}, "attnres_block_size": 2,
                                     "gate_logit_normalizer": 8, "window_size": 64}),
                (TNL, tnl_shapes(), {"hidden_dim": 64, "linear_act_fun": "relu", "norm_type": "layernorm", "bias": True,
                                     "no_scale_embedding": True})):
            for key, value in cases.items():
                with self.subTest(key):
                    self.refuse(self.public(key, {**base, key: value}, random_weights(shapes, "F32")), key, str(value))
            key = "hidden_size" if base is GLA else "decoder_embed_dim"
            without = {k: v for k, v in base.items() if k != key}
            self.refuse(self.public(f"no {key}", without, random_weights(shapes, "F32")), key, "missing")

    def test_refused_tensors(self):
        def changed(name, shape):
            shapes = {**gla_shapes(), name: shape}
            return random_weights({n: s for n, s in shapes.items() if s}, "F32")

        up, conv = "model.layers.1.mlp.up_proj.weight", "model.layers.0.attn.q_conv1d.weight"
        self.refuse(self.public("missing", GLA, changed(up, None)), up, "missing")
        self.refuse(self.public("shape", GLA, changed(up, (47, 32))), up, "[47, 32]", "[48, 32]")
        self.refuse(self.public("unknown", GLA, changed(conv, (16, 1, 4))), conv)
        self.refuse(self.public("tied", {**GLA, "tie_word_embeddings": True}, changed(up, (48, 32))), "lm_head.weight")
        (self.dir / "none").mkdir()
        (self.dir / "none/config.json").write_text(json.dumps(GLA))
        self.refuse("none", safetensors_file.SINGLE)
        cut = self.public("cut", GLA, changed(up, (48, 32))) / safetensors_file.SINGLE
        cut.write_bytes(cut.read_bytes()[:-1])
        self.refuse("cut", safetensors_file.SINGLE, "cut short")
        cut.write_bytes(b"\x80\x02}")
        self.refuse("cut", safetensors_file.SINGLE, "not a safetensors file")
        lost = self.public("lost", GLA, changed(up, (48, 32)), shard_bytes=30000)
        sorted(lost.glob("*.safetensors"))[1].unlink()
        self.refuse("lost", "model-00002-of-")

    def test_refused_checkpoints(self):
        for key, value in (("mixer", "scalar"), ("gate_bias", "true"), ("low_rank", 8), ("gate_temperature", 8),
                           ("norm", "layernorm")):
            self.train(1, key, train__steps=1, **{f"model__{key}": value})
            self.refuse(self.checkpoints(key)[-1], f"model.{key} = ")
        self.train(1, "slope", train__steps=1, model__family="tnl", model__slope="fla")
        self.refuse(self.checkpoints("slope")[-1], "model.slope = fla")
        self.train(2, "large", train__steps=1, model__init_std=1e5)
        large = self.checkpoints("large")[-1]
        self.refuse(large, "too large for F16", flags=["--dtype", "float16"])
        part = large / "part-00001.h5"
        data = bytearray(part.read_bytes())
        data[len(data) // 2] ^= 1
        part.write_bytes(data)
        self.refuse(large, "part-00001.h5", "damaged")
        part.unlink()
        self.refuse(large, "part-00001.h5", "missing")
        manifest = large / "manifest.json"
        manifest.write_text(manifest.read_text().replace('"seed": 1', '"seed": 2'))
        self.refuse(large, "manifest.json", "damaged")
        self.refuse("nowhere", "manifest.json")
        (self.dir / "refused").mkdir()
        self.refuse("nowhere", "refused: exists")


driver.main()
