"""NaN and Inf (V24): exit code 3, what is not finite is named, and no checkpoint holds it."""
import json
import zlib

import driver
import h5py
import numpy as np


def damage(checkpoint, name, value):
    """Writes a value into the first element of a tensor; checksums are those of the new files."""
    manifest_path = checkpoint / "manifest.json"
    text = manifest_path.read_text()
    with h5py.File(checkpoint / "part-00000.h5", "r+") as part:
        rows = part[name][()]
        rows.flat[0] = value
        part[name][...] = rows
    for file in json.loads(text)["files"]:
        data = (checkpoint / file["name"]).read_bytes()
        assert len(data) == file["bytes"]
        text = text.replace(file["checksum"], f"{zlib.crc32(data):08x}")
    own = json.loads(text)["checksum"]
    zeroed = text.replace(own, "0" * 8, 1)
    manifest_path.write_text(zeroed.replace("0" * 8, f"{zlib.crc32(zeroed.encode()):08x}", 1))


class NotFinite(driver.Test):
    def refuse(self, ranks, *words, command="train", run_dir="run", **keys):
        done = self.start(ranks, command, run_dir, **keys).finish()
        self.assertEqual(done.code, 3, done)
        lines = [line for line in done.err.splitlines() if line.startswith("baton: ")]
        self.assertEqual(len(lines), 1, done)
        for word in (*words, "not finite"):
            self.assertIn(word, lines[0])
        return done

    def test_v24_weight(self):
        self.train(3, "run", train__steps=4, checkpoint__every=2)
        before = driver.files_of(self.dir / "run/checkpoints")
        name = "model.layers.1.attn.k_proj.weight"
        for value in (np.nan, np.inf):
            damage(self.checkpoints("run")[-1], "param/" + name, value)
            damaged = driver.files_of(self.dir / "run/checkpoints")
            self.assertNotEqual(damaged, before)
            self.refuse(3, "step 5", name, "rank 0", "weights untouched", checkpoint__resume="auto")
            self.refuse(3, "validation", name, command="eval")
            self.assertEqual(driver.files_of(self.dir / "run/checkpoints"), damaged)

    def test_v24_runaway(self):
        """Weights that run away within float32: states, losses or gradients overflow, never those on the disk."""
        for ranks, keys in ((1, {}), (3, {}), (4, {"parallel__sp": 2}), (3, {"train__window": 32})):
            name = f"run{ranks}{len(keys)}"
            done = self.refuse(ranks, "step ", "rank ", run_dir=name, train__lr=1e30, train__steps=100,
                               checkpoint__every=1, checkpoint__keep=0, **keys)
            steps = sorted(driver.losses(self.dir / name))
            self.assertIn(f"step {steps[-1] + 1}:", done.err)
            saved = self.checkpoints(name)
            self.assertEqual(len(saved), len(steps))
            for tensor, x in driver.tensors(saved[-1]).items():
                if tensor.startswith("param/"):
                    self.assertTrue(np.isfinite(x).all(), tensor)

    def test_v24_state(self):
        """A weight of the last layer's values so large that its state overflows at once."""
        self.train(3, "run", train__steps=1)
        name = "model.layers.1.attn.v_proj.weight"
        damage(self.checkpoints("run")[-1], "param/" + name, 3e38)
        self.refuse(3, "step 2", "rank ", checkpoint__resume="auto", train__steps=5)

    def test_v24_first_step(self):
        self.refuse(3, "step 1", "rank ", model__init_std=1e20)
        self.assertEqual(self.checkpoints("run"), [])


driver.main()
