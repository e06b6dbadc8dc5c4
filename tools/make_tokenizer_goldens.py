#!/usr/bin/env python3
"""Make the golden files of tests/tokenizer from reference tokenizers.

Use: make_tokenizer_goldens.py [--vocabularies DIR] [--models DIR] [--into DIR] [--show N]
Needs numpy-free Python with gguf, tokenizers (0.23) and llama-cpp-python (0.3.36).

strings.bin      the test strings, the same at every run (seeded): u32 length, bytes, and so on
NAME.ids         u32 hashes of ids (the low half of FNV-1a 64 over int32 ids), three a string: llama.cpp's without and
                 with special tokens parsed, and those of Hugging Face `tokenizers` without; 0: no expectation
words.PRE.ids    for pre-tokenizers of which there is no vocabulary here: hashes of the byte lengths of the words that
                 `tokenizers` cuts valid UTF-8 into, one a string; 0: no expectation
NAME.json        what else llama.cpp says: bos, eos, add_bos, add_eos, the ids that end generation, and a hash of all
                 pieces (each followed by a zero byte)

`tokenizers` is built here from the GGUF's vocabulary and merges, with the pre-tokenizer of the model's own
tokenizer.json, for byte-level BPE and valid UTF-8. Where the two references disagree the test expects `tokenizers`:
that happens only where a vocabulary lacks a byte (Falcon, SmolLM2: some control characters), whose neighbours merge in
`tokenizers` and do not in llama.cpp.

Left out, with reasons:
- Unicode: only code points that Unicode 14 assigns (that of PCRE2 10.42 and of Python 3.11's unicodedata); the
  references know later ones.
- Normalizers (NFC in qwen2, mpt): a GGUF file does not name them, llama.cpp has none, and they would change the text.
- Invalid UTF-8 that llama.cpp's lenient decoder takes for characters: overlong forms, surrogates, and sequences above
  U+10FFFF (for which it throws). narrows replaces each such byte by U+FFFD, as both do with other invalid bytes.
- SPM: a space soon after a sequence cut short. llama.cpp takes the space, written as U+2581, for the missing bytes, so
  that it comes back as U+2581; narrows keeps the space.
"""
import argparse, ctypes, json, pathlib, random, struct, sys, unicodedata

ROOT = pathlib.Path(__file__).resolve().parent.parent
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
CL100K = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{%s}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
          r"|\s+(?!\S)|\s+")

O200K_WORD = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+%s"
              r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*%s")
END = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
BLOOM = r" ?[^(\s|.,!?…。，、।۔،)]+"
PRE_TOKENIZERS = {
    "gpt-4o": [O200K_WORD % ((r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?",) * 2) + r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*" + END],
    "tekken": [O200K_WORD % ("", "") + r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*" + END],
    "qwen35": [r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*" + END],
    "deepseek-coder": [r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-퟿]+", r"\p{N}"],
    "deepseek-v3": [r"\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+",
                    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
                    r"| ?[\p{P}\p{S}]+[\r\n]*" + END],
    "bailingmoe": [r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]"
                   r"|\s+(?!\S)|\s+"],
    "seed-coder": [r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+" + END],
    "bloom": [BLOOM],
    "viking": [BLOOM, r"\p{N}"],
}


def fnv(data):
    h = 0xCBF29CE484222325
    for b in data:
        h = ((h ^ b) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return h


def hash_ids(ids):
    return fnv(struct.pack(f"<{len(ids)}i", *ids)) & 0xFFFFFFFF or 1


def assigned(first, last):
    return [chr(c) for c in range(first, last + 1) if unicodedata.category(chr(c)) not in ("Cn", "Cs")]


def make_strings():
    rng = random.Random(20240917)
    alphabets = [assigned(*r) for r in [
        (0x61, 0x7A), (0x41, 0x5A), (0x30, 0x39), (0x21, 0x7E), (0x00, 0x1F), (0x7F, 0xFF), (0x100, 0x24F),
        (0x250, 0x2FF), (0x300, 0x36F), (0x370, 0x3FF), (0x400, 0x52F), (0x530, 0x5FF), (0x600, 0x6FF), (0x900, 0x97F),
        (0x980, 0x9FF), (0xE00, 0xE7F), (0x1000, 0x109F), (0x10A0, 0x10FF), (0x13A0, 0x13FF), (0x1780, 0x17FF),
        (0x1E00, 0x1FFF), (0x2000, 0x206F), (0x2070, 0x20CF), (0x2100, 0x218F), (0x2190, 0x23FF), (0x2460, 0x27BF),
        (0x3000, 0x30FF), (0x3100, 0x33FF), (0x4E00, 0x9FFC), (0xAC00, 0xD7A3), (0xE000, 0xE0FF), (0xF900, 0xFAD9),
        (0xFB00, 0xFEFF), (0xFF00, 0xFFEF), (0x10000, 0x103FF), (0x10400, 0x104FF), (0x1D400, 0x1D7FF),
        (0x1F300, 0x1F9FF), (0x20000, 0x200FF)]]
    every = assigned(0, 0x323AF) + assigned(0xE0000, 0xE01EF) + assigned(0xF0000, 0xF00FF)
    spaces = [" ", "  ", "   ", "\t", "\n", "\r\n", "\r", "\n\n", " \n", "\n ", "\t\t", "\u00a0", "\u3000", "\u2028",
              "\u0085", "\u180e", "\u200b", "\ufeff", "\v", "\f", "\u1680", "\u202f", "\u2003"]
    contractions = ["'s", "'S", "'t", "'T", "'re", "'Re", "'RE", "'ve", "'vE", "'m", "'M", "'ll", "'LL", "'lL", "'d", "'D",
                    "’s", "''s", "'x", "'", "'\u017f", "n't", "N'T"]
    words = ("the of and to in Hello World tokenizer I you WE'RE they don can running naïve Führer über Straße été "
             "señor façade Ünïcödé HTTPServer snake_case camelCase x86_64 3.14159 1e-9 0xFF C++20 #include <vector> "
             "std::string() => != <= && || // /* */ https://example.org/a?b=c&d=%20 user@host $9.99 50% "
             "привет мир Ελλάδα שלום مرحبا नमस्ते สวัสดี 你好 世界 こんにちは カタカナ 한국어 Việt "
             "กำลัง กว่า კარგი բարեւ").split()
    emoji = ["😀", "👩‍👩‍👧‍👦", "🏳️‍🌈", "👍🏽", "🇩🇪🇫🇷", "❤️", "1️⃣", "🧑🏿‍🚀", "☺", "😶‍🌫️", "🦙", "✅"]
    marks = ["e\u0301", "a\u0308\u0304", "\u0301", "n\u0303o", "क्षि", "ก็", "Z̴a̵l̶g̷o̸", "\u1e9b\u0323", "각", "가"]
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<s>", "</s>", "<unk>", "<|eot_id|>", "<|begin_of_text|>",
               "<|start_header_id|>", "<|end|>", "<|user|>", "<|assistant|>", "<|system|>", "<bos>", "<eos>", "<pad>",
               "<start_of_turn>", "<end_of_turn>", "<unused7>", "<unused77>", "<|padding|>", ">>TITLE<<",
               "<|reserved_special_token_12|>", "[PAD151700]", "<0x0A>", "<0xE2>", "▁", "▁▁", "<|im_", "im_end|>",
               "<mask>", "<filename>", "<reponame>", "<file_sep>", "<table>", "<h1>", "</h1>", "[multimodal]", "<|"]

    def number():
        return rng.choice(["{}", "{}.{}", "{},{}", "-{}", "{}e{}", "{}/{}", "²{}³", "٣{}", "Ⅷ{}", "{}½"]).replace(
            "{}", str(rng.randrange(10 ** rng.randrange(1, 15))))

    def run():
        return rng.choice([" ", "\n", "\t", " \n", "\r\n", "=", "-", "a", "A", "0", "!", "\u00a0", "\u3000", "'", "é", "中",
                           "😀", "ab", ".", "#"]) * rng.choice([2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 64, 100, 300])

    def script():
        a = rng.choice(alphabets)
        return "".join(rng.choice(a) for _ in range(rng.randrange(1, 12)))

    def anything():
        return "".join(rng.choice(every) for _ in range(rng.randrange(1, 8)))

    def pick(table):
        return lambda: rng.choice(table)

    parts = [pick(words)] * 6 + [pick(spaces)] * 5 + [pick(contractions)] * 3 + [pick(emoji), pick(marks), number, number,
             run, script, script, script, anything]
    strings = [b"", b" ", b"  ", b"\n", b"\0", b"a\0b", b" \n \n  x", "▁".encode(), b"'", b"\xff", b"\xc3", b"\xe2\x96"]
    strings += [(c * n).encode() for c in (" ", "\n", "a", "\t", "中", "1", "-") for n in (1000, 2000)]
    while len(strings) < 1400:
        strings.append("".join(rng.choice(parts)() + (" " if rng.random() < 0.3 else "")
                               for _ in range(rng.randrange(1, 14))).encode())
    while len(strings) < 1700:  # special tokens written out
        strings.append("".join(rng.choice(special) if rng.random() < 0.5 else rng.choice(parts)()
                               for _ in range(rng.randrange(1, 9))).encode())
    # A lone lead or continuation byte, or a sequence cut short. No lead byte above 0xF3, and after a lead byte nothing
    # that would make an overlong form or a surrogate (see above).
    broken = [b"\x80", b"\xbf", b"\xc3", b"\xc3\xc3", b"\xe2", b"\xe2\x96", b"\xf0\x9f", b"\xf0\x9f\x98", b"\xff",
              b"\xfe", b"\x80\x80\x80", b"\xe4\xb8", b"\xf8", b"\xe2 ", b"\xf0  a", b"\xc3 "]
    while len(strings) < 2000:
        pieces = [rng.choice(broken) if rng.random() < 0.4 else rng.choice(parts)().encode()
                  for _ in range(rng.randrange(1, 9))]
        strings.append(b"".join(pieces))
    return strings


def strict(data):
    try:
        data.decode()
        return True
    except UnicodeDecodeError:
        return False


def lenient_differs(data):
    """Whether llama.cpp's decoder would take for a character what is not valid UTF-8."""
    i = 0
    while i < len(data):
        lead = data[i]
        n = 1 if lead < 0x80 else 2 if 0xC0 <= lead < 0xE0 else 3 if 0xE0 <= lead < 0xF0 else 4 if 0xF0 <= lead < 0xF8 else 0
        sequence = data[i:i + n]
        if n and len(sequence) == n and all(b & 0xC0 == 0x80 for b in sequence[1:]):
            if not strict(sequence):
                return True
            i += n
        else:
            i += 1
    return False


def swallows_space(data):
    """Whether a sequence cut short reaches over a space in llama.cpp's SPM."""
    space = "▁".encode()
    data, i = data.replace(b" ", space), 0
    while i < len(data):
        n = 1 if data[i] < 0xC0 else 2 if data[i] < 0xE0 else 3 if data[i] < 0xF0 else 4
        if any(data[i + k:i + k + 3] == space for k in range(1, n)):
            return True
        i += n
    return False


class Gguf:
    def __init__(self, path):
        import gguf
        self.fields = gguf.GGUFReader(path).fields

    def get(self, key, fallback=None):
        field = self.fields.get("tokenizer.ggml." + key)
        return field.contents() if field else fallback


def hugging_face(file):
    from tokenizers import AddedToken, Regex, Tokenizer, models, pre_tokenizers as p
    if file.get("model") != "gpt2":
        return None
    pre = file.get("pre")
    split = lambda regex: p.Split(Regex(regex), "isolated")
    plain = p.ByteLevel(add_prefix_space=False, use_regex=False)
    gpt2 = p.ByteLevel(add_prefix_space=False, use_regex=True)
    pre_tokenizer = {
        "gpt-2": lambda: gpt2, "mpt": lambda: gpt2,
        "smollm": lambda: p.Sequence([p.Digits(individual_digits=True), gpt2]),
        "falcon": lambda: p.Sequence([p.Punctuation("contiguous"), gpt2, p.Digits(individual_digits=False),
                                      split("[0-9][0-9][0-9]")]),
        "llama-bpe": lambda: p.Sequence([split(CL100K % "1,3"), plain]),
        "qwen2": lambda: p.Sequence([split(CL100K % "1"), plain]),
    }[pre]()
    tokens, kinds = file.get("tokens"), file.get("token_type")
    # Some names are control tokens for llama.cpp whatever the file says; they never are cut out of plain text.
    user = [t for t, k in zip(tokens, kinds) if k == 4]
    vocabulary = {t: i for i, t in enumerate(tokens)}
    merges = [(m[:m.index(" ", 1)], m[m.index(" ", 1) + 1:]) for m in file.get("merges")]
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, ignore_merges=pre == "llama-bpe"))
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.add_tokens([AddedToken(t, normalized=False) for t in user])
    return lambda text: tokenizer.encode(text, add_special_tokens=False).ids


class Llama:
    def __init__(self, path):
        import llama_cpp
        self.c = llama_cpp
        quiet = llama_cpp.llama_log_callback(lambda level, text, data: None)
        llama_cpp.llama_log_set(quiet, ctypes.c_void_p(0))
        self.quiet = quiet
        parameters = llama_cpp.llama_model_default_params()
        parameters.vocab_only = True
        self.model = llama_cpp.llama_model_load_from_file(str(path).encode(), parameters)
        self.vocab = llama_cpp.llama_model_get_vocab(self.model)
        self.count = llama_cpp.llama_vocab_n_tokens(self.vocab)

    def encode(self, data, special):
        room = len(data) + 16
        buffer = (self.c.llama_token * room)()
        n = self.c.llama_tokenize(self.vocab, data, len(data), buffer, room, False, special)
        if n < 0:
            sys.exit("llama_tokenize: buffer too small")
        return list(buffer[:n])

    def piece(self, token):
        buffer = ctypes.create_string_buffer(4096)
        n = self.c.llama_token_to_piece(self.vocab, token, buffer, 4096, 0, True)
        return buffer.raw[:n]

    def facts(self):
        v, c = self.vocab, self.c
        return {"bos": c.llama_vocab_bos(v), "eos": c.llama_vocab_eos(v), "add_bos": bool(c.llama_vocab_get_add_bos(v)),
                "add_eos": bool(c.llama_vocab_get_add_eos(v)),
                "end_of_generation": [i for i in range(self.count) if c.llama_vocab_is_eog(v, i)],
                "pieces": f"{fnv(b''.join(self.piece(i) + bytes(1) for i in range(self.count))):016x}"}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vocabularies", type=pathlib.Path, default=ROOT.parent / "shared/data/vocab")
    parser.add_argument("--models", type=pathlib.Path, default=ROOT / "models")
    parser.add_argument("--into", type=pathlib.Path, default=ROOT / "tests/data/tokenizer")
    parser.add_argument("--show", type=int, default=0, help="print so many strings on which the references disagree")
    arguments = parser.parse_args()
    arguments.into.mkdir(parents=True, exist_ok=True)
    strings = make_strings()
    (arguments.into / "strings.bin").write_bytes(b"".join(struct.pack("<I", len(s)) + s for s in strings))
    from tokenizers import Regex, pre_tokenizers
    for name, patterns in PRE_TOKENIZERS.items():
        splits = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(p), "isolated") for p in patterns])
        hashes = [hash_ids([len(w.encode()) for w, _ in splits.pre_tokenize_str(s.decode())]) if strict(s) else 0
                  for s in strings]
        (arguments.into / f"words.{name}.ids").write_bytes(struct.pack(f"<{len(hashes)}I", *hashes))
    paths = sorted(arguments.vocabularies.glob("*.gguf")) + sorted(arguments.models.glob("*.gguf"))
    for path in paths:
        file = Gguf(path)
        llama, hf = Llama(path), hugging_face(file)
        hashes, disagreements = [], []
        for s in strings:
            row = [0, 0, 0]
            if not lenient_differs(s) and not (file.get("model") == "llama" and swallows_space(s)):
                ids = llama.encode(s, False)
                row[:2] = hash_ids(ids), hash_ids(llama.encode(s, True))
                if hf and strict(s):
                    other = hf(s.decode())
                    row[2] = hash_ids(other)
                    if other != ids:
                        disagreements.append((s, ids, other))
            hashes += row
        (arguments.into / f"{path.stem}.ids").write_bytes(struct.pack(f"<{len(hashes)}I", *hashes))
        (arguments.into / f"{path.stem}.json").write_text(json.dumps(llama.facts()) + "\n")
        print(f"{path.stem}: {len(strings)} strings, {sum(h != 0 for h in hashes[2::3])} by tokenizers, "
              f"{sum(h == 0 for h in hashes[::3])} left out, {len(disagreements)} disagreements", flush=True)
        for s, ids, other in sorted(disagreements, key=lambda d: len(d[0]))[:arguments.show]:
            print(f"  {s.decode()!r}\n    llama.cpp  {ids}\n    tokenizers {other}")


main()
