#!/usr/bin/env python3
"""Makes small tokenizers like those of known models, and what the `tokenizers` library gives for them.

Into tests/data/tokenizer/hf, a folder each: tokenizer.json, tokenizer_config.json where it says something, and ids.bin,
which has for each string of tests/data/tokenizer/strings.bin three 16-bit hashes (FNV-1a, its low bits, of the ids as
int32; 0: left out)

    special tokens written in the text parsed, none added · parsed, with those that the post-processor adds · not parsed

and a fourth of the UTF-8 text that the ids of the third decode to, with special tokens shown. Left out are invalid
UTF-8 (the library takes text) and, for the decoding, strings of which an unknown token or a lost byte stands for a part, and
characters on which the library's tables and Python's, which are newer, do not agree.

The text to train on is generated here, from a fixed seed. Run it again and the same files come out.
"""
import argparse, json, math, pathlib, random, struct, unicodedata

from tokenizers import (AddedToken, Regex, Tokenizer, decoders, models, normalizers as n, pre_tokenizers as p,
                        processors, trainers)

ROOT = pathlib.Path(__file__).resolve().parent.parent
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
CL100K = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{%s}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
          r"|\s+(?!\S)|\s+")


def fnv(data):
    h = 0xCBF29CE484222325
    for b in data:
        h = ((h ^ b) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return h & 0xFFFF or 1


def hash_ids(ids):
    return fnv(struct.pack(f"<{len(ids)}i", *ids))


def training_text(foreign_words=True):
    rng = random.Random(7)
    subjects = "the ship|a pilot|the tide|our captain|every lantern|the narrow channel|a gull|the harbour|she|they".split("|")
    verbs = "crosses|follows|doesn't see|can't reach|measures|they're counting|has kept|will leave|won't pass|turns".split("|")
    objects = ("the rocks|two buoys|the northern light|a rope of 120 metres|deep water|its own wake|the town's bells|"
               "café façades|naïve maps|the Straße|12,500 waves|3.14 knots|x_86 code(){}").split("|")
    foreign = ["привет мир", "Ελλάδα", "שלום", "你好 世界", "こんにちは", "한국어", "नमस्ते", "Việt Nam", "été", "señor"]
    lines = []
    for _ in range(400):
        line = f"{rng.choice(subjects)} {rng.choice(verbs)} {rng.choice(objects)}"
        if rng.random() < 0.3:
            line = line[0].upper() + line[1:] + rng.choice([".", "!", "?", "...", " -- ", ";"])
        if rng.random() < 0.2 and foreign_words:
            line += " " + rng.choice(foreign)
        if rng.random() < 0.2:
            line = "    " * rng.randrange(1, 3) + line
        lines.append(line + rng.choice(["", "", "\n", "\n\n", "  "]))
    return lines


SMALL = dict(show_progress=False, vocab_size=420)


def bpe(tokenizer, special=(), initial=(), foreign_words=True, **options):
    options = {**SMALL, **options}
    trainer = trainers.BpeTrainer(special_tokens=list(special), initial_alphabet=list(initial), **options)
    tokenizer.train_from_iterator(training_text(foreign_words), trainer)
    return tokenizer


def byte_level(pre, special=("<|endoftext|>",), normalizer=None, **options):
    tokenizer = Tokenizer(models.BPE(**options))
    tokenizer.pre_tokenizer = pre
    if normalizer:
        tokenizer.normalizer = normalizer
    tokenizer.decoder = decoders.ByteLevel()
    return bpe(tokenizer, special, p.ByteLevel.alphabet())


def split_bytes(pattern):
    return p.Sequence([p.Split(Regex(pattern), "isolated"), p.ByteLevel(add_prefix_space=False, use_regex=False)])


def template(single, tokenizer, *tokens):
    return processors.TemplateProcessing(single=single, special_tokens=[(t, tokenizer.token_to_id(t)) for t in tokens])


def gpt2():
    tokenizer = byte_level(p.ByteLevel(add_prefix_space=False))
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    return tokenizer, {"bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>"}


def gpt2_prefix():
    """add_prefix_space, and pieces of words with single_word and lstrip."""
    tokenizer = byte_level(p.ByteLevel(add_prefix_space=True), special=("<|endoftext|>", "<s>", "</s>"))
    tokenizer.add_tokens([AddedToken("in", single_word=True), AddedToken("<mask>", lstrip=True, normalized=False),
                          AddedToken("the", single_word=True, lstrip=True, rstrip=True), "Hello"])
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", tokenizer.token_to_id("</s>")),
                                                            ("<s>", tokenizer.token_to_id("<s>")))
    return tokenizer, {}


def llama3():
    special = ["<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]
    tokenizer = byte_level(split_bytes(CL100K % "1,3"), special, ignore_merges=True)
    # Whole words that no merges make.
    raw = json.loads(tokenizer.to_str())
    for word in ("Ġtokenizer", "HTTPServer", "Ġcan"):
        raw["model"]["vocab"].setdefault(word, len(raw["model"]["vocab"]))
    tokenizer = Tokenizer.from_str(json.dumps(raw))
    tokenizer.post_processor = processors.Sequence(
        [processors.ByteLevel(trim_offsets=False), template("<|begin_of_text|> $A", tokenizer, "<|begin_of_text|>")])
    return tokenizer, {"bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>",
                       "chat_template": [{"name": "default", "template": "{{ bos_token }}{{ messages[0]['content'] }}"},
                                         {"name": "tool_use", "template": "unused"}]}


def qwen2():
    tokenizer = byte_level(split_bytes(CL100K.replace("{%s}", "")), ["<|endoftext|>", "<|im_start|>", "<|im_end|>"], n.NFC())
    return tokenizer, {"bos_token": None, "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>",
                       "chat_template": "{{ messages[0]['content'] }}<|im_end|>"}


def falcon():
    pre = p.Sequence([p.Punctuation("contiguous"), p.ByteLevel(add_prefix_space=False, use_regex=True),
                      p.Digits(individual_digits=False), p.Split(Regex("[0-9][0-9][0-9]"), "isolated")])
    return byte_level(pre, ["<|endoftext|>", ">>TITLE<<"]), {"eos_token": "<|endoftext|>"}


def starcoder():
    pre = p.Sequence([p.Digits(individual_digits=True), p.ByteLevel(add_prefix_space=False, use_regex=True)])
    return byte_level(pre, ["<|endoftext|>", "<fim_prefix>", "<filename>", "<reponame>"]), {}


def gpt_neox():
    """Runs of spaces as added tokens, NFC."""
    tokenizer = byte_level(p.ByteLevel(add_prefix_space=False), ["<|endoftext|>", "<|padding|>"], n.NFC())
    tokenizer.add_tokens([AddedToken(" " * k, normalized=True) for k in range(16, 1, -1)])
    return tokenizer, {}


def bytes_of_spm():
    return [f"<0x{b:02X}>" for b in range(256)]


def spm_like(normalizer, pre, decoder, special=("<unk>", "<s>", "</s>"), train_split=True):
    """Merges as SentencePiece would have them: every way to make a token, in the order of the tokens."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = n.Sequence([n.Prepend("▁"), n.Replace(" ", "▁")])
    tokenizer.pre_tokenizer = p.Split("▁", "merged_with_next")
    bpe(tokenizer, list(special) + bytes_of_spm(), foreign_words=False, vocab_size=600)
    raw = json.loads(tokenizer.to_str())
    vocab = raw["model"]["vocab"]
    for extra in ("▁▁", "▁▁▁", "▁▁▁▁"):
        vocab.setdefault(extra, len(vocab))
    first = len(special) + 256
    merges = []
    for token, rank in sorted(vocab.items(), key=lambda item: item[1]):
        ways = [(token[:k], token[k:]) for k in range(1, len(token))]
        if rank >= first:
            merges += sorted((w for w in ways if w[0] in vocab and w[1] in vocab), key=lambda w: (vocab[w[0]], vocab[w[1]]))
    raw["model"]["merges"] = merges
    # Single characters come after the tokens, as in SentencePiece's models.
    raw["added_tokens"] = [t for t in raw["added_tokens"] if t["content"] in special]
    tokenizer = Tokenizer.from_str(json.dumps(raw))
    tokenizer.normalizer, tokenizer.decoder = normalizer, decoder
    if pre:
        tokenizer.pre_tokenizer = pre
    else:
        raw = json.loads(tokenizer.to_str())
        raw["pre_tokenizer"] = None
        tokenizer = Tokenizer.from_str(json.dumps(raw))
    return tokenizer


SPM_DECODER = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]


def llama2():
    tokenizer = spm_like(n.Sequence([n.Prepend("▁"), n.Replace(" ", "▁")]), None,
                         decoders.Sequence(SPM_DECODER + [decoders.Strip(" ", 1, 0)]))
    tokenizer.post_processor = template("<s> $A", tokenizer, "<s>")
    return tokenizer, {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "add_bos_token": True,
                       "add_eos_token": False, "legacy": True}


def mistral():
    tokenizer = spm_like(None, p.Metaspace("▁", "first", split=False),
                         decoders.Sequence(SPM_DECODER + [decoders.Strip(" ", 1, 0)]))
    tokenizer.add_special_tokens([AddedToken("[INST]", normalized=False, special=True), "[/INST]"])
    tokenizer.post_processor = template("<s> $A", tokenizer, "<s>")
    return tokenizer, {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}


def gemma():
    tokenizer = spm_like(n.Replace(" ", "▁"), p.Split(" ", "merged_with_previous"), decoders.Sequence(SPM_DECODER),
                         ("<pad>", "<eos>", "<bos>", "<unk>", "<start_of_turn>", "<end_of_turn>"))
    tokenizer.add_tokens([AddedToken("\n\n", normalized=False), AddedToken("<unused7>", normalized=False)])
    tokenizer.post_processor = template("<bos> $A", tokenizer, "<bos>")
    return tokenizer, {"bos_token": "<bos>", "eos_token": "<eos>", "unk_token": "<unk>", "pad_token": "<pad>"}


def phi3():
    tokenizer = spm_like(n.Sequence([n.Prepend("▁"), n.Replace(" ", "▁")]), None,
                         decoders.Sequence(SPM_DECODER + [decoders.Strip(" ", 1, 0)]))
    tokenizer.add_special_tokens([AddedToken(t, rstrip=t != "<|endoftext|>", normalized=False, special=True)
                                  for t in ("<|endoftext|>", "<|assistant|>", "<|system|>", "<|end|>", "<|user|>")])
    tokenizer.add_tokens([AddedToken("</s>", rstrip=True, normalized=False)])
    return tokenizer, {"bos_token": "<s>", "eos_token": "<|endoftext|>", "unk_token": "<unk>", "add_bos_token": False,
                       "add_eos_token": False}


def double_array(mapping):
    """A charsmap of SentencePiece: a double-array trie over UTF-8, by plain search for free places."""
    replacements, offsets = b"", {}
    for key, value in mapping.items():
        offsets[key.encode()] = len(replacements)
        replacements += value.encode() + b"\0"
    tree = {}
    for key, offset in offsets.items():
        node = tree
        for byte in key:
            node = node.setdefault(byte, {})
        node[0] = offset
    units, used = {0: 0}, {0}

    def place(node, position):
        base = 1
        while True:
            # An offset has 21 bits, or 29 that are a multiple of 256.
            if all((base ^ byte) not in used for byte in node) and (base ^ position) < 1 << 21:
                break
            base += 1
        offset = base ^ position
        units[position] |= offset << 10
        for byte in node:
            used.add(base ^ byte)
            units[base ^ byte] = byte
        for byte, child in node.items():
            if byte == 0:
                units[position] |= 1 << 8
                units[base] = child | 1 << 31
            else:
                place(child, base ^ byte)

    place(tree, 0)
    size = (max(used) | 255) + 1
    array = struct.pack(f"<{size}I", *(units.get(i, 0) for i in range(size)))
    return struct.pack("<I", len(array)) + array + replacements


def charsmap():
    import unicodedata
    mapping = {"\t": " ", "\n": " ", "\r": " ", "\u00a0": " ", "\u3000": " ", "\u2003": " ", "\u200b": "", "\x01": "", "\x7f": ""}
    for c in list(range(0xA1, 0x180)) + list(range(0x1E00, 0x1F00)) + list(range(0x2100, 0x2180)) + list(range(0xFF00, 0xFFEF)):
        folded = unicodedata.normalize("NFKC", chr(c))
        if folded != chr(c):
            mapping[chr(c)] = folded
    for base in "aeiounAEIOUNyc":
        for mark in "\u0300\u0301\u0302\u0303\u0308\u0327":
            composed = unicodedata.normalize("NFKC", base + mark)
            if len(composed) == 1:
                mapping[base + mark] = composed
    return double_array(mapping)


def unigram(normalizer, pre, decoder, byte_fallback=False, special=("<unk>",)):
    """Scores by the number of times that a piece occurs; what the library's trainer gives differs from run to run."""
    counts = {}
    for line in training_text(foreign_words=False):
        for word, _ in pre.pre_tokenize_str(normalizer.normalize_str(line)):
            for begin in range(len(word)):
                for end in range(begin + 1, min(len(word), begin + 8) + 1):
                    counts[word[begin:end]] = counts.get(word[begin:end], 0) + 1
    ranked = sorted(counts, key=lambda piece: (len(piece) > 1, -counts[piece] * len(piece), piece))[:300]
    total = sum(counts[piece] for piece in ranked)
    vocab = [(token, 0.0) for token in list(special) + (bytes_of_spm() if byte_fallback else [])]
    vocab += [(piece, round(math.log(counts[piece] / total), 4)) for piece in ranked]
    tokenizer = Tokenizer(models.Unigram(vocab, list(special).index("<unk>"), byte_fallback))
    tokenizer.normalizer, tokenizer.pre_tokenizer, tokenizer.decoder = normalizer, pre, decoder
    tokenizer.add_special_tokens(list(special))
    return tokenizer


def t5():
    tokenizer = unigram(n.Sequence([n.Precompiled(charsmap()), n.Strip(left=False, right=True),
                                    n.Replace(Regex(" {2,}"), "▁")]),
                        p.Metaspace("▁", "always"), decoders.Metaspace("▁", "always"),
                        special=("<pad>", "</s>", "<unk>"))
    tokenizer.add_special_tokens([f"<extra_id_{i}>" for i in range(3)])
    tokenizer.post_processor = template("$A </s>", tokenizer, "</s>")
    return tokenizer, {"eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}


def unigram_bytes():
    tokenizer = unigram(n.Sequence([n.NFKC(), n.Lowercase()]),
                        p.Sequence([p.WhitespaceSplit(), p.Metaspace("▁", "first")]), decoders.Sequence(
                            [decoders.ByteFallback(), decoders.Metaspace("▁", "first")]), True,
                        ("<unk>", "<s>", "</s>"))
    tokenizer.post_processor = processors.BertProcessing(("</s>", 2), ("<s>", 1))
    return tokenizer, {}


def word_level():
    tokenizer = Tokenizer(models.WordLevel(unk_token="[UNK]"))
    tokenizer.normalizer = n.Sequence([n.NFD(), n.StripAccents(), n.Strip()])
    tokenizer.pre_tokenizer = p.Whitespace()
    tokenizer.train_from_iterator(training_text(), trainers.WordLevelTrainer(
        vocab_size=300, special_tokens=["[UNK]", "[CLS]", "<s>"], show_progress=False))
    raw = json.loads(tokenizer.to_str())  # by frequency, equal ones in no order: sorted
    words = sorted(w for w in raw["model"]["vocab"] if w not in ("[UNK]", "[CLS]", "<s>"))
    raw["model"]["vocab"] = {w: i for i, w in enumerate(["[UNK]", "[CLS]", "<s>"] + words)}
    tokenizer = Tokenizer.from_str(json.dumps(raw))
    tokenizer.add_tokens([AddedToken("HELLO", normalized=True), AddedToken("fa\u00e7ade", normalized=True),
                          AddedToken("of", single_word=True, normalized=True)])
    return tokenizer, {}


def merge_by_count(words, suffix, merges):
    """A little BPE trainer, for what the library's numbers in no fixed order."""
    words = {word: [*word[:-1], word[-1] + suffix] for word in words if word}
    found = []
    for _ in range(merges):
        counts = {}
        for symbols in words.values():
            for pair in zip(symbols, symbols[1:]):
                counts[pair] = counts.get(pair, 0) + 1
        best = max(sorted(counts), key=counts.get)
        found.append(best)
        for symbols in words.values():
            i = 0
            while i + 1 < len(symbols):
                if (symbols[i], symbols[i + 1]) == best:
                    symbols[i:i + 2] = ["".join(best)]
                i += 1
    return found


def clip():
    """A suffix at the end of words, unknown characters fused."""
    normalizer = n.Sequence([n.NFKD(), n.Replace(Regex(r"\s+"), " "), n.Lowercase()])
    pre = p.Sequence([p.Split(Regex(r"'s|'t|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"), "removed", True),
                      p.Punctuation("merged_with_previous")])
    words = [word for line in training_text(foreign_words=False)
             for word, _ in pre.pre_tokenize_str(normalizer.normalize_str(line))]
    merges = merge_by_count(words, "</w>", 120)
    letters = sorted(set("".join(words)))
    tokens = ["<unk>", "<s>"] + letters + [c + "</w>" for c in letters] + ["".join(pair) for pair in merges]
    tokenizer = Tokenizer(models.BPE({t: i for i, t in enumerate(dict.fromkeys(tokens))}, merges, unk_token="<unk>",
                                     end_of_word_suffix="</w>", fuse_unk=True))
    tokenizer.normalizer, tokenizer.pre_tokenizer, tokenizer.decoder = normalizer, pre, decoders.BPEDecoder("</w>")
    tokenizer.add_special_tokens(["<unk>", "<s>"])
    return tokenizer, {}


def splits():
    """Every behaviour of Split, inverted ones, and pieces of Oniguruma's syntax."""
    s = lambda pattern, behavior, invert=False: p.Split(Regex(pattern), behavior, invert)
    pre = p.Sequence([
        s(r"[[:punct:]&&[^'_]]+", "isolated"), s(r"\h{3}", "merged_with_next"), s(r"[^\S\n]+|\n", "merged_with_previous"),
        s(r"\b(?i)hello|world\b", "contiguous"), s(r"\p{Greek}+|[\p{Han}\p{Hiragana}]{2}+", "isolated"),
        s(r"\w+|[^\w]", "isolated", True), s(r"(?<=\d)(?=\D)", "isolated"), s(r"^.$", "removed"), p.Split("-", "removed"),
        p.CharDelimiterSplit("="), p.ByteLevel(add_prefix_space=False, use_regex=False)])
    return byte_level(pre), {}


MAKERS = [gpt2, gpt2_prefix, llama3, qwen2, falcon, starcoder, gpt_neox, llama2, mistral, gemma, phi3, t5, unigram_bytes,
          word_level, clip, splits]


def newer_characters():
    """Characters that the library's older Unicode tables know less of than Python's, and so narrows."""
    every = [chr(c) for c in range(0x110000) if not 0xD800 <= c < 0xE000]
    found = set()
    for form in ("NFC", "NFD", "NFKC", "NFKD"):
        library = getattr(n, form)()
        found.update(c for c in every if library.normalize_str(c) != unicodedata.normalize(form, c))
    strip, punctuation = n.StripAccents(), p.Punctuation("removed")
    for c in every:
        category = unicodedata.category(c)[0]
        if (strip.normalize_str(c) == "") != (category == "M"):
            found.add(c)
        if ord(c) > 0x7F and (not punctuation.pre_tokenize_str(c)) != (category == "P"):
            found.add(c)
    return found


def goldens(tokenizer, strings, newer):
    """`newer`: characters of which no string with other than byte-level parts may have one."""
    raw = json.loads(tokenizer.to_str())
    prepends = '"Prepend"' in json.dumps(raw["normalizer"])
    added = {token["id"] for token in raw["added_tokens"]}
    # The library decodes these to their normalized form.
    altered = {token["id"] for token in raw["added_tokens"] if token["normalized"] and tokenizer.normalizer
               and tokenizer.normalizer.normalize_str(token["content"]) != token["content"]}
    rows = []
    for data in strings:
        try:
            text = data.decode()
        except UnicodeDecodeError:
            rows += [0, 0, 0, 0]
            continue
        if newer.intersection(text):
            rows += [0, 0, 0, 0]
            continue
        tokenizer.encode_special_tokens = False
        row = [hash_ids(tokenizer.encode(text, add_special_tokens=special).ids) for special in (False, True)]
        tokenizer.encode_special_tokens = True
        encoding = tokenizer.encode(text, add_special_tokens=False)
        row.append(hash_ids(encoding.ids))
        decoded = tokenizer.decode(encoding.ids, skip_special_tokens=False)
        unknown = "\ufffd" in decoded or "<unk>" in decoded or "[UNK]" in decoded
        # narrows also drops the space that is put before the text after an added token, the library does not.
        spaces = prepends and not added.isdisjoint(encoding.ids)
        # A decoder of suffixes drops the last space, which narrows cannot know to be the last.
        if encoding.tokens and encoding.tokens[-1].endswith("</w>"):
            decoded += " "
        # Without a decoder a space stands between tokens; narrows keeps it before an added token that comes first.
        spaces |= raw["decoder"] is None and bool(encoding.ids) and encoding.ids[0] in added
        row.append(0 if unknown or spaces or not altered.isdisjoint(encoding.ids) else fnv(decoded.encode()))
        rows += row
    return struct.pack(f"<{len(rows)}H", *rows)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--into", type=pathlib.Path, default=ROOT / "tests/data/tokenizer/hf")
    parser.add_argument("--strings", type=pathlib.Path, default=ROOT / "tests/data/tokenizer/strings.bin")
    parser.add_argument("--only", nargs="*", help="the names of the tokenizers to make")
    arguments = parser.parse_args()
    data, strings = arguments.strings.read_bytes(), []
    while data:
        size, = struct.unpack_from("<I", data)
        strings.append(data[4:4 + size])
        data = data[4 + size:]
    newer = newer_characters()
    for make in MAKERS:
        name = make.__name__
        if arguments.only and name not in arguments.only:
            continue
        tokenizer, config = make()
        folder = arguments.into / name
        folder.mkdir(parents=True, exist_ok=True)
        text = json.dumps(json.loads(tokenizer.to_str()), ensure_ascii=False, separators=(",", ":"))
        (folder / "tokenizer.json").write_text(text)
        if config:
            (folder / "tokenizer_config.json").write_text(json.dumps(config, ensure_ascii=False, indent=1) + "\n")
        (folder / "ids.bin").write_bytes(goldens(Tokenizer.from_str(text), strings, newer))
        print(f"{name}: {tokenizer.get_vocab_size()} tokens, {len(text)} bytes", flush=True)


main()
