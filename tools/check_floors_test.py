"""Tests of check_floors: run with python3 -m unittest tools/check_floors_test.py."""
import pathlib
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from check_floors import check, violation  # noqa: E402


class Floors(unittest.TestCase):
    def test_downward_and_own_folder(self):
        self.assertIsNone(violation("rarefy/cache/pool.h", "rarefy/base/buffer.h"))
        self.assertIsNone(violation("rarefy/cache/pool.h", "rarefy/cache/block_map.h"))
        self.assertIsNone(violation("apps/main.cpp", "rarefy/engine/engine.h"))
        self.assertIsNone(violation("rarefy/base/check.h", "fmt/format.h"))

    def test_upward_and_sideways(self):
        self.assertIn("floor", violation("rarefy/base/check.h", "rarefy/cache/pool.h"))
        self.assertIn("floor", violation("rarefy/ops/linear.h", "rarefy/files/gguf.h"))
        self.assertIn("floor", violation("rarefy/attention/x.h", "rarefy/select/y.h"))
        self.assertIn("floor", violation("rarefy/eval/x.h", "apps/options.h"))

    def test_kernels_see_only_the_view(self):
        self.assertIsNone(violation("rarefy/attention/sm80/decode.cuh", "rarefy/cache/kv_view.h"))
        self.assertIn("kv_view", violation("rarefy/attention/sm80/decode.cuh", "rarefy/cache/pool.h"))
        self.assertIsNone(violation("rarefy/attention/attention.cpp", "rarefy/cache/pool.h"))

    def test_unknown_folder_and_line_numbers(self):
        with tempfile.TemporaryDirectory() as root:
            file = pathlib.Path(root, "rarefy/base/x.h")
            file.parent.mkdir(parents=True)
            pathlib.Path(root, "apps").mkdir()
            file.write_text('#pragma once\n#include "rarefy/model/layer.h"\n')
            self.assertEqual(len(check(pathlib.Path(root))), 1)
            self.assertIn("rarefy/base/x.h:2:", check(pathlib.Path(root))[0])
            pathlib.Path(root, "rarefy/other").mkdir()
            pathlib.Path(root, "rarefy/other/y.h").write_text("")
            self.assertEqual(len(check(pathlib.Path(root))), 2)


if __name__ == "__main__":
    unittest.main()
