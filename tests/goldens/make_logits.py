"""Next-token log probabilities of SmolLM2-135M-Instruct in float32 from the dequantised weights: the reference for Rarefy's logits.

  python tests/goldens/make_logits.py MODEL.gguf tests/goldens/logits.bin

Needs PyPI gguf, tokenizers and numpy. Writes, little-endian: int32 prompts; per prompt int32 tokens, then the token ids (int32); then per
position the K = 64 most likely ids (int32), their log probabilities (float32) and the log of the probability of all others (float32).
"""
import sys

import numpy as np
from gguf import GGUFReader, dequantize

K = 64
PROMPTS = ["tests/goldens/prompt_prose.txt", "tests/goldens/prompt_code.txt", "tests/goldens/prompt_list.txt"]


class Model:
    def __init__(self, path):
        reader = GGUFReader(path)
        value = lambda key: reader.fields["llama." + key].contents()
        self.layers, self.heads, self.kv_heads = (value(k) for k in ("block_count", "attention.head_count", "attention.head_count_kv"))
        self.theta, self.eps = value("rope.freq_base"), value("attention.layer_norm_rms_epsilon")
        self.dim = value("embedding_length") // self.heads
        self.w = {t.name: np.asarray(dequantize(t.data, t.tensor_type), dtype=np.float32) for t in reader.tensors}
        self.tokens = reader.fields["tokenizer.ggml.tokens"].contents()
        self.merges = reader.fields["tokenizer.ggml.merges"].contents()

    def norm(self, x, name):
        return x / np.sqrt(np.mean(x * x, -1, keepdims=True) + np.float32(self.eps)) * self.w[name + ".weight"]

    def rope(self, x):
        """x [tokens, heads, dim]; GGUF's llama files rotate neighbouring channels."""
        half = self.dim // 2
        angle = np.arange(x.shape[0])[:, None] * self.theta ** (-np.arange(half) / half)
        cos, sin = np.cos(angle).astype(np.float32)[:, None], np.sin(angle).astype(np.float32)[:, None]
        out = np.empty_like(x)
        out[..., 0::2] = x[..., 0::2] * cos - x[..., 1::2] * sin
        out[..., 1::2] = x[..., 1::2] * cos + x[..., 0::2] * sin
        return out

    def logits(self, ids):
        n, group = len(ids), self.heads // self.kv_heads
        mask = np.triu(np.full((n, n), -np.inf, dtype=np.float32), 1)
        x = self.w["token_embd.weight"][ids]
        for layer in range(self.layers):
            p = f"blk.{layer}."
            linear = lambda h, name: h @ self.w[p + name + ".weight"].T
            h = self.norm(x, p + "attn_norm")
            q = self.rope(linear(h, "attn_q").reshape(n, self.heads, self.dim))
            k = self.rope(linear(h, "attn_k").reshape(n, self.kv_heads, self.dim))
            v = linear(h, "attn_v").reshape(n, self.kv_heads, self.dim)
            out = np.empty_like(q)
            for head in range(self.heads):
                s = q[:, head] @ k[:, head // group].T / np.float32(np.sqrt(self.dim)) + mask
                e = np.exp(s - s.max(-1, keepdims=True))
                out[:, head] = e / e.sum(-1, keepdims=True) @ v[:, head // group]
            x = x + linear(out.reshape(n, -1), "attn_output")
            h = self.norm(x, p + "ffn_norm")
            gate = linear(h, "ffn_gate")
            x = x + linear(gate / (1 + np.exp(-gate)) * linear(h, "ffn_up"), "ffn_down")
        return self.norm(x, "output_norm") @ self.w["token_embd.weight"].T


def tokenizer(model):
    from tokenizers import Tokenizer, models, pre_tokenizers
    t = Tokenizer(models.BPE({s: i for i, s in enumerate(model.tokens)}, [tuple(m.split(" ")) for m in model.merges]))
    t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)])
    return t


def main(path, target):
    model = Model(path)
    encode = tokenizer(model)
    with open(target, "wb") as out:
        out.write(np.int32(len(PROMPTS)).tobytes())
        for prompt in PROMPTS:
            ids = np.array(encode.encode(open(prompt).read()).ids, dtype=np.int32)
            z = model.logits(ids).astype(np.float64)
            z -= z.max(-1, keepdims=True)
            log_p = z - np.log(np.exp(z).sum(-1, keepdims=True))
            top = np.argsort(-log_p, -1, kind="stable")[:, :K].astype(np.int32)
            best = np.take_along_axis(log_p, top, -1)
            rest = np.log(np.maximum(1 - np.exp(best).sum(-1), 1e-30))
            out.write(np.int32(len(ids)).tobytes() + ids.tobytes())
            out.write(top.tobytes() + best.astype(np.float32).tobytes() + rest.astype(np.float32).tobytes())
            print(prompt, len(ids), "tokens, mean nll", -np.mean(np.take_along_axis(log_p[:-1], ids[1:, None], -1)))


if __name__ == "__main__":
    main(*sys.argv[1:])
