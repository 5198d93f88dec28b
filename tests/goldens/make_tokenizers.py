"""Small tokenizers of each family, and what PyPI tokenizers makes of 200 strings with them.

  python tests/goldens/make_tokenizers.py MODEL.gguf tests/goldens/tokenizers

The real vocabularies cannot be committed; what differs between families is everything around the vocabulary, so each family gets a small
one, trained here on text of this repository and set up as the family's own tokenizer.json is. SmolLM2 is the real one, from the model
file: of it only the ids are kept. Each folder holds tokenizer.json (or tokenizer.gguf) and cases.json: text, ids with special tokens
parsed, ids with special tokens as text, and the decoded text.
"""
import json
import pathlib
import random
import sys

from gguf import GGUFReader, GGUFWriter
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

ROOT = pathlib.Path(__file__).resolve().parents[2]
CORPUS = [str(ROOT / p) for p in ("docs/architecture.md", "docs/format24.md", "CONTRIBUTING.md", "tests/goldens/prompt_prose.txt",
                                  "tests/goldens/prompt_code.txt", "tests/goldens/prompt_list.txt")]
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
SPECIALS = ["<|im_start|>", "<|im_end|>"]


def byte_level(pre, normalizer=None, ignore_merges=False, specials=SPECIALS, size=900):
    t = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    if normalizer:
        t.normalizer = normalizer
    t.pre_tokenizer = pre
    t.decoder = decoders.ByteLevel()
    t.train(CORPUS, trainers.BpeTrainer(vocab_size=size, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), special_tokens=[], show_progress=False))
    t.add_special_tokens([AddedToken(s, special=True, normalized=False) for s in specials])
    t.add_tokens([AddedToken("<tool>", special=False, normalized=False)])
    return t


def sentence_piece(metaspace):
    """As Mistral and Llama 2 (Prepend and Replace) or as newer conversions (Metaspace)."""
    trained = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    trained.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    byte_tokens = [f"<0x{b:02X}>" for b in range(256)]
    trained.train(CORPUS, trainers.BpeTrainer(vocab_size=1000, special_tokens=["<unk>", "<s>", "</s>"] + byte_tokens, show_progress=False, max_token_length=8))
    data = json.loads(trained.to_str())
    # The trainer marks byte tokens as special; in the family's files they are plain vocabulary entries.
    data["added_tokens"] = [t for t in data["added_tokens"] if t["content"] in ("<unk>", "<s>", "</s>")]
    data["model"]["byte_fallback"] = True
    if metaspace:
        data["normalizer"] = None
        data["pre_tokenizer"] = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": False}
        data["decoder"] = {"type": "Sequence", "decoders": [{"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]}
    else:
        data["decoder"] = {"type": "Sequence", "decoders": [{"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]}
    return Tokenizer.from_str(json.dumps(data))


def real_smollm(path):
    fields = GGUFReader(path).fields
    tokens, merges = fields["tokenizer.ggml.tokens"].contents(), fields["tokenizer.ggml.merges"].contents()
    t = Tokenizer(models.BPE({s: i for i, s in enumerate(tokens)}, [tuple(m.split(" ")) for m in merges]))
    t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)])
    t.decoder = decoders.ByteLevel()
    kinds = fields["tokenizer.ggml.token_type"].contents()
    t.add_special_tokens([AddedToken(s, special=True, normalized=False) for s, k in zip(tokens, kinds) if k == 3])
    return t


def strings(specials):
    rng = random.Random(7)
    out = ["", " ", "  ", "   a", "a   ", "\n", "\n\n", " \n ", "\t\ttab", "a\r\nb", "Hello world", " Hello  world ", "I'm you'LL we'Ve it'S", "don't",
           "naïve café", "cafe\u0301 e\u0301", "Å \u212b A\u030a", "日本語のテキスト", "한국어 텍스트", "русский текст", "العربية", "שלום", "हिन्दी", "ไทย",
           "👩‍👩‍👧‍👦 family", "🇩🇪🇫🇷", "👍🏽", "e=mc² x₁ ½ Ⅷ ٣٤٥ १२३", "1234567890", "12 345,67", "3.14159", "0x1F", "a1b2c3", "______", "-----", "!!!???",
           "foo_bar.baz()", "if (x < 3) { return y; }", "https://example.org/a?b=c&d=e#f", "\u00a0nbsp\u00a0", "\u0085nel", "\u2028ls", "\u3000wide",
           "zero\u200bwidth", "ſharp ſ'ſ", "x" * 100, "ab" * 60, " " * 40, "\n" * 30, "a b c d e f g", "The quick brown fox jumps over the lazy dog.",
           "<0x41>", "<unk> is text", "▁ mark", "\x00nul", "\x7f", "ﬁ ligature", "𝒳 math", "\U0010ffff", "…“quotes”—dash"]
    for s in specials:
        out += [s, f"a{s}b", f"a {s} b", f"{s}{s}", f" {s}\n", s[:-1], f"x{s[:3]}{s}"]
    out += ["<tool>", "a <tool> b"]
    corpus = " ".join(pathlib.Path(p).read_text() for p in CORPUS)
    pool = [corpus[i:i + n] for i, n in ((rng.randrange(len(corpus) - 80), rng.randrange(5, 80)) for _ in range(70))]
    mixed = ["".join(rng.choice("abc XYZ019 .,'\n\té日🙂-") for _ in range(rng.randrange(1, 40))) for _ in range(200)]
    return (out + pool + mixed)[:200]


def write(folder, tokenizer, specials, save):
    folder.mkdir(parents=True, exist_ok=True)
    cases = []
    for text in strings(specials):
        tokenizer.encode_special_tokens = False
        parsed = tokenizer.encode(text, add_special_tokens=False).ids
        tokenizer.encode_special_tokens = True
        as_text = tokenizer.encode(text, add_special_tokens=False).ids
        cases.append({"text": text, "parsed": parsed, "as_text": as_text, "decoded": tokenizer.decode(as_text, skip_special_tokens=True)})
    (folder / "cases.json").write_text("[\n" + ",\n".join(json.dumps(c) for c in cases) + "\n]\n")
    if save:
        tokenizer.encode_special_tokens = False
        (folder / "tokenizer.json").write_text(json.dumps(json.loads(tokenizer.to_str()), separators=(",", ":")))


def write_gguf(path, tokenizer):
    """The same vocabulary as llama.cpp's converter writes it: scores fall with the id, so that merges keep their order."""
    data = json.loads(tokenizer.to_str())
    order = {a + b: -float(rank) for rank, (a, b) in enumerate(m if isinstance(m, list) else m.split(" ") for m in data["model"]["merges"])}
    tokens = sorted(data["model"]["vocab"], key=data["model"]["vocab"].get)
    writer = GGUFWriter(path, "llama")
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores([order.get(t, -1e6) for t in tokens])
    writer.add_token_types([2 if t == "<unk>" else 3 if t in ("<s>", "</s>") else 6 if t.startswith("<0x") else 1 for t in tokens])
    writer.add_bos_token_id(tokens.index("<s>"))
    writer.add_eos_token_id(tokens.index("</s>"))
    writer.add_unk_token_id(tokens.index("<unk>"))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()


def main(model, target):
    target = pathlib.Path(target)
    split = lambda pattern: pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    write(target / "smollm2", real_smollm(model), SPECIALS, save=False)
    write(target / "gpt2", byte_level(pre_tokenizers.ByteLevel(add_prefix_space=False)), SPECIALS, save=True)
    llama = ["<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]
    write(target / "llama3", byte_level(split(LLAMA3), ignore_merges=True, specials=llama), llama, save=True)
    write(target / "qwen2", byte_level(split(QWEN2), normalizers.NFC()), SPECIALS, save=True)
    for name, metaspace in (("mistral", False), ("metaspace", True)):
        tokenizer = sentence_piece(metaspace)
        write(target / name, tokenizer, ["<s>", "</s>"], save=True)
        if not metaspace:
            write_gguf(target / name / "tokenizer.gguf", tokenizer)


if __name__ == "__main__":
    main(*sys.argv[1:])
