"""baton replay of the golden files on real ranks."""

import driver
import h5py
import numpy as np

FILES = ("operator.h5", "gla.h5", "tnl.h5")


class Replay(driver.Test):
    def replay(self, ranks, name, *args):
        return self.run_baton(ranks, "replay", driver.SOURCE / "tests/data" / name, *args)

    def test_golden_files_on_any_number_of_ranks(self):
        for ranks in (1, 2, 3, 4, 5, 8):
            for name in FILES:
                for dtype in ("float32", "float64"):
                    with self.subTest(ranks=ranks, file=name, dtype=dtype):
                        done = self.replay(ranks, name, "--dtype", dtype)
                        self.assertEqual(done.code, 0, done)
                        self.assertIn(" 0 failed, ", done.out)
                        self.assertIn(f"{dtype}, {ranks} rank", done.out)

    def test_every_strategy_of_the_scan(self):
        for scan in ("doubling", "all_gather", "hierarchical"):
            for ranks in (2, 3, 4, 8):
                for name in FILES:
                    with self.subTest(scan=scan, ranks=ranks, file=name):
                        done = self.replay(ranks, name, "--dtype", "float64", "--scan", scan)
                        self.assertEqual(done.code, 0, done)
                        self.assertIn(" 0 failed, ", done.out)
        done = self.replay(2, FILES[0], "--scan", "ring")
        self.assertEqual(done.code, 2, done)
        self.assertIn("--scan = ring: must be chain, doubling, all_gather or hierarchical", done.err)

    def test_over_tolerance(self):
        for name in FILES:
            done = self.replay(3, name, "--dtype", "float64", "--tolerance", "1e-18")
            self.assertEqual(done.code, 1, done)
            self.assertIn("FAILED", done.out)

    def test_missing_and_wrong_tensors(self):
        source = driver.SOURCE / "tests/data/gla.h5"
        (self.dir / "bad.h5").write_bytes(source.read_bytes())
        with h5py.File(self.dir / "bad.h5", "r+") as file:
            name = "grad/model.layers.0.attn.q_proj.weight"
            file[name][...] = file[name][()] * (1 + 1e-3)
            del file["state/1"]
        done = self.run_baton(3, "replay", "bad.h5")
        self.assertEqual(done.code, 1, done)
        self.assertIn(" 2 failed", done.out)

    def test_out_file(self):
        for name in FILES:
            for ranks in (1, 3):
                done = self.replay(ranks, name, "--dtype", "float64", "--out", f"out{ranks}.h5")
                self.assertEqual(done.code, 0, done)
            compared = 0
            with h5py.File(driver.SOURCE / "tests/data" / name) as golden, h5py.File(self.dir / "out1.h5") as one, \
                    h5py.File(self.dir / "out3.h5") as three:
                def compare(path, x):
                    nonlocal compared
                    if not isinstance(x, h5py.Dataset):
                        return
                    compared += 1
                    self.assertEqual(x.shape, three[path].shape, path)
                    scale = max(np.linalg.norm(golden[path][()]), 1e-30) if "dg" not in path else np.inf
                    self.assertLessEqual(np.linalg.norm(x[()] - golden[path][()]) / scale, 1e-12, path)
                    self.assertLessEqual(np.linalg.norm(x[()] - three[path][()]) / scale, 1e-12, path)
                one.visititems(compare)
            self.assertGreater(compared, 20)

    def test_no_golden_file(self):
        with h5py.File(self.dir / "empty.h5", "w") as file:
            file["x"] = 1
        (self.dir / "text.h5").write_text("no HDF5 file")
        for name in ("empty.h5", "text.h5", "nowhere.h5"):
            done = self.run_baton(3, "replay", name)
            self.assertEqual(done.code, 2, done)
            lines = [line for line in done.err.splitlines() if line.startswith("baton: ")]
            self.assertEqual(len(lines), 1, done)
            self.assertIn(name, lines[0])


driver.main()
