"""Tiny random models of each family as Hugging Face folders, and their logits from a plain numpy decoder.

  python tests/goldens/make_families.py tests/goldens/families

The decoder follows the families' public modelling code: rotate-half RoPE, biases on q, k, v (Qwen 2), RMSNorm of q and k heads (Qwen 3), muP
scales and LongRoPE (MiniCPM), llama3 rope scaling (Llama). Weights are float16, arithmetic float64. logits.bin: float32 [tokens, vocab].
"""
import json
import math
import pathlib
import sys

import numpy as np

HIDDEN, LAYERS, HEADS, KV, DIM, INNER, VOCAB, TOKENS = 64, 2, 4, 2, 64, 96, 40, 24
BASE = {"num_hidden_layers": LAYERS, "hidden_size": HIDDEN, "intermediate_size": INNER, "num_attention_heads": HEADS, "num_key_value_heads": KV,
        "head_dim": DIM, "vocab_size": VOCAB, "max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "rope_theta": 10000.0}
FAMILIES = {
    "llama": {"rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}},
    "mistral": {},
    "qwen2": {},
    "qwen3": {},
    "minicpm": {"scale_emb": 12, "scale_depth": 1.4, "dim_model_base": 32,
                "rope_scaling": {"rope_type": "longrope", "short_factor": [1 + i / 40 for i in range(DIM // 2)],
                                 "long_factor": [2 + i / 10 for i in range(DIM // 2)], "original_max_position_embeddings": 1024}},
}


def save(path, tensors):
    header, offset = {}, 0
    for name, t in tensors.items():
        header[name] = {"dtype": "F16", "shape": list(t.shape), "data_offsets": [offset, offset + t.nbytes]}
        offset += t.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(t.tobytes() for t in tensors.values()))


def make(family, rng):
    r = lambda *shape, scale: (rng.normal(size=shape) * scale).astype(np.float16)
    norm = lambda n: (1 + rng.normal(size=n) * 0.2).astype(np.float16)
    t = {"model.embed_tokens.weight": r(VOCAB, HIDDEN, scale=0.5 if family != "minicpm" else 0.05), "model.norm.weight": norm(HIDDEN)}
    if family != "qwen2":  # Qwen 2's small models tie the output to the embedding
        t["lm_head.weight"] = r(VOCAB, HIDDEN, scale=0.3)
    for l in range(LAYERS):
        p = f"model.layers.{l}."
        for name, out, inner in (("self_attn.q_proj", HEADS * DIM, HIDDEN), ("self_attn.k_proj", KV * DIM, HIDDEN), ("self_attn.v_proj", KV * DIM, HIDDEN),
                                 ("self_attn.o_proj", HIDDEN, HEADS * DIM), ("mlp.gate_proj", INNER, HIDDEN), ("mlp.up_proj", INNER, HIDDEN),
                                 ("mlp.down_proj", HIDDEN, INNER)):
            t[p + name + ".weight"] = r(out, inner, scale=1 / math.sqrt(inner))
            if family == "qwen2" and name[-6:-5] == "q" or family == "qwen2" and name in ("self_attn.k_proj", "self_attn.v_proj"):
                t[p + name + ".bias"] = r(out, scale=0.5)
        t[p + "input_layernorm.weight"], t[p + "post_attention_layernorm.weight"] = norm(HIDDEN), norm(HIDDEN)
        if family == "qwen3":
            t[p + "self_attn.q_norm.weight"], t[p + "self_attn.k_norm.weight"] = norm(DIM), norm(DIM)
    return t


def frequencies(config):
    f = config["rope_theta"] ** (-np.arange(DIM // 2) / (DIM // 2))
    s = config.get("rope_scaling")
    if not s:
        return f, 1.0
    if s["rope_type"] == "llama3":
        wave = 2 * math.pi / f
        smooth = (s["original_max_position_embeddings"] / wave - s["low_freq_factor"]) / (s["high_freq_factor"] - s["low_freq_factor"])
        mixed = (1 - smooth) * f / s["factor"] + smooth * f
        f = np.where(wave > s["original_max_position_embeddings"] / s["low_freq_factor"], f / s["factor"],
                     np.where(wave < s["original_max_position_embeddings"] / s["high_freq_factor"], f, mixed))
        return f, 1.0
    stretch = config["max_position_embeddings"] / s["original_max_position_embeddings"]
    return f / np.array(s["short_factor"]), math.sqrt(1 + math.log(stretch) / math.log(s["original_max_position_embeddings"]))


def logits(family, config, t, ids):
    w = {k: v.astype(np.float64) for k, v in t.items()}
    norm = lambda x, g: x / np.sqrt((x * x).mean(-1, keepdims=True) + config["rms_norm_eps"]) * g
    f, scale = frequencies(config)
    angle = np.arange(len(ids))[:, None, None] * f
    cos, sin = np.cos(angle) * scale, np.sin(angle) * scale

    def rope(x):
        a, b = x[..., :DIM // 2], x[..., DIM // 2:]
        return np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)

    residual = config["scale_depth"] / math.sqrt(LAYERS) if family == "minicpm" else 1.0
    x = w["model.embed_tokens.weight"][ids] * config.get("scale_emb", 1)
    n = len(ids)
    mask = np.triu(np.full((n, n), -np.inf), 1)
    for l in range(LAYERS):
        p = f"model.layers.{l}."
        linear = lambda h, name: h @ w[p + name + ".weight"].T + w.get(p + name + ".bias", 0)
        h = norm(x, w[p + "input_layernorm.weight"])
        q, k, v = (linear(h, f"self_attn.{c}_proj").reshape(n, -1, DIM) for c in "qkv")
        if family == "qwen3":
            q, k = norm(q, w[p + "self_attn.q_norm.weight"]), norm(k, w[p + "self_attn.k_norm.weight"])
        q, k = rope(q), rope(k)
        out = np.empty_like(q)
        for head in range(HEADS):
            s = q[:, head] @ k[:, head // (HEADS // KV)].T / math.sqrt(DIM) + mask
            e = np.exp(s - s.max(-1, keepdims=True))
            out[:, head] = e / e.sum(-1, keepdims=True) @ v[:, head // (HEADS // KV)]
        x = x + residual * linear(out.reshape(n, -1), "self_attn.o_proj")
        h = norm(x, w[p + "post_attention_layernorm.weight"])
        gate = linear(h, "mlp.gate_proj")
        x = x + residual * linear(gate / (1 + np.exp(-gate)) * linear(h, "mlp.up_proj"), "mlp.down_proj")
    x = norm(x, w["model.norm.weight"]) / (HIDDEN / config["dim_model_base"] if family == "minicpm" else 1.0)
    return x @ w.get("lm_head.weight", w["model.embed_tokens.weight"]).T


def main(target):
    rng = np.random.default_rng(3)
    for family, more in FAMILIES.items():
        folder = pathlib.Path(target, family)
        folder.mkdir(parents=True, exist_ok=True)
        config = {"model_type": family, **BASE, **more}
        tensors = make(family, rng)
        save(folder / "model.safetensors", tensors)
        (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
        ids = np.arange(TOKENS) * 7 % VOCAB
        (folder / "logits.bin").write_bytes(logits(family, config, tensors, ids).astype(np.float32).tobytes())


if __name__ == "__main__":
    main(*sys.argv[1:])
