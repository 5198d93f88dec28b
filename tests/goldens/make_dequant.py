"""Blocks of every GGUF type and what PyPI gguf makes of them.

  python tests/goldens/make_dequant.py tests/goldens/dequant.bin

Writes, per type: int32 GGML type, int32 values, int32 bytes, the bytes, the values (float32). Random bytes, with the float16 scales
replaced by ordinary numbers; K types cannot be quantised by the package, but it dequantises them.
"""
import sys

import numpy as np
from gguf import GGMLQuantizationType as T, dequantize
from gguf.constants import GGML_QUANT_SIZES

# Byte offsets of the float16 fields in a block.
SCALES = {T.Q8_0: [0], T.Q4_0: [0], T.Q4_1: [0, 2], T.Q5_0: [0], T.Q5_1: [0, 2], T.Q4_K: [0, 2], T.Q5_K: [0, 2], T.Q6_K: [208]}


def main(target):
    rng = np.random.default_rng(1)
    with open(target, "wb") as out:
        for kind, scales in SCALES.items():
            values, size = GGML_QUANT_SIZES[kind]
            blocks = rng.integers(0, 256, (4, size), dtype=np.uint8)
            for at in scales:
                blocks[:, at:at + 2] = rng.normal(0, 0.1, (4, 1)).astype(np.float16).view(np.uint8)
            result = np.asarray(dequantize(blocks.reshape(1, -1), kind), dtype=np.float32).reshape(-1)
            out.write(np.array([int(kind), result.size, blocks.size], dtype=np.int32).tobytes() + blocks.tobytes() + result.tobytes())


if __name__ == "__main__":
    main(*sys.argv[1:])
