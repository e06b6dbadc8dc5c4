"""Tokenizers of about 270 tokens as Hugging Face files, one a family of published models: the same kinds of normalizer,
pre-tokenizer, decoder, special tokens and their ids' place, and hardly any merges."""
import dataclasses
import json

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from . import goldens

SPACE = "\u2581"
PARTS = ["h e", "_ t", "_t he", "i n", "_ a", "n d", "_a nd", "in g"]
CL100K = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
          r"|\s+(?!\S)|\s+")
CHATML = ("{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + "
          "'<|im_end|>\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}")
SAMPLE = "The hen's in the red pond, and 1234 rings on  sand:\n\tna\u00efve \u6f22\u5b57 \U0001f642!"


@dataclasses.dataclass
class Made:
    tokenizer: Tokenizer
    config: dict  # tokenizer_config.json
    ids: dict  # bos_token_id and so on, for config.json
    words: tuple  # [first, end) of ids that are not special

    def size(self):
        return self.tokenizer.get_vocab_size(with_added_tokens=True)

    def write(self, folder):
        for name, value in ("tokenizer.json", json.loads(self.tokenizer.to_str())), ("tokenizer_config.json", self.config):
            text = json.dumps(value, ensure_ascii=False, separators=(",", ":")) + "\n"
            (folder / name).write_text(text, encoding="utf-8")


def _merges(space):
    return [tuple(part.replace("_", space).split(" ")) for part in PARTS]


def _finish(tokenizer, specials, kind, roles, words, add_bos=False, **config):
    """roles: bos, eos, unk, pad, each a token; those of them that a family lacks are left out."""
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in specials])
    ids = {f"{role}_token_id": tokenizer.token_to_id(token) for role, token in roles.items() if role != "unk"}
    stated = {"tokenizer_class": kind, **{f"{role}_token": token for role, token in roles.items()},
              "model_max_length": 128, "clean_up_tokenization_spaces": False, **config}
    if add_bos:
        bos = roles["bos"]
        template = processors.TemplateProcessing(single=f"{bos} $A", pair=f"{bos} $A {bos} $B",
                                                 special_tokens=[(bos, tokenizer.token_to_id(bos))])
        tokenizer.post_processor = template if tokenizer.post_processor is None else processors.Sequence(
            [tokenizer.post_processor, template])
    return Made(tokenizer, stated, ids, words)


def _byte_level(specials, kind, roles, specials_first=True, split=None, normalizer=None, in_vocabulary=True,
                ignore_merges=False, **config):
    """split: the regular expression that cuts words, None: ByteLevel's own, GPT-2's."""
    words = goldens.byte_spelling() + ["".join(pair) for pair in _merges("Ġ")]
    tokens = specials + words if specials_first else words + specials
    vocabulary = {token: id for id, token in enumerate(tokens) if in_vocabulary or token not in specials}
    tokenizer = Tokenizer(models.BPE(vocabulary, _merges("Ġ"), ignore_merges=ignore_merges))
    if normalizer:
        tokenizer.normalizer = normalizer
    bytes_of_words = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=split is None)
    tokenizer.pre_tokenizer = bytes_of_words if split is None else pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(split), "isolated"), bytes_of_words])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    first = len(specials) if specials_first else 0
    return _finish(tokenizer, specials, kind, roles, (first, first + len(words)), **config)


def gpt2():
    end = "<|endoftext|>"
    return _byte_level([end], "GPT2Tokenizer", {"bos": end, "eos": end, "unk": end}, specials_first=False,
                       add_prefix_space=False)


def opt():
    return _byte_level(["<s>", "<pad>", "</s>", "<unk>"], "GPT2Tokenizer",
                       {"bos": "</s>", "eos": "</s>", "unk": "</s>", "pad": "<pad>"}, add_bos=True, add_bos_token=True,
                       add_prefix_space=False)


def neox():
    end = "<|endoftext|>"
    return _byte_level([end, "<|padding|>"], "GPTNeoXTokenizer", {"bos": end, "eos": end, "unk": end},
                       normalizer=normalizers.NFC(), add_prefix_space=False)


def falcon():
    specials = [">>TITLE<<", ">>ABSTRACT<<", "<|endoftext|>"]
    return _byte_level(specials, "PreTrainedTokenizerFast", {"bos": specials[2], "eos": specials[2]},
                       add_prefix_space=False)


def llama3():
    specials = ["<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>"]
    return _byte_level(specials, "PreTrainedTokenizerFast", {"bos": specials[0], "eos": specials[2]},
                       specials_first=False, split=CL100K % "{1,3}", in_vocabulary=False, ignore_merges=True,
                       add_bos=True)


def smollm3():
    specials = ["<|begin_of_text|>", "<|end_of_text|>", "<|im_start|>", "<|im_end|>"]
    return _byte_level(specials, "PreTrainedTokenizerFast", {"bos": specials[0], "eos": specials[3]},
                       specials_first=False, split=CL100K % "{1,3}", in_vocabulary=False, ignore_merges=True,
                       chat_template=CHATML)


def qwen2():
    specials = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    return _byte_level(specials, "Qwen2Tokenizer", {"eos": specials[2], "pad": specials[0]}, specials_first=False,
                       split=CL100K % "", normalizer=normalizers.NFC(), in_vocabulary=False, chat_template=CHATML,
                       add_bos_token=False, add_prefix_space=False, bos_token=None, unk_token=None)


def _spm(specials, kind, roles, prepend, extra=(), **config):
    merges = _merges(SPACE)
    letters = list(dict.fromkeys(SPACE + "".join(PARTS).replace(" ", "").replace("_", "")))
    tokens = specials + [f"<0x{byte:02X}>" for byte in range(256)] + list(extra) + ["".join(pair) for pair in merges]
    tokens += [letter for letter in letters if letter not in tokens]
    pairs = merges + [(SPACE * i, SPACE) for i in range(1, 1 + len(extra))]
    tokenizer = Tokenizer(models.BPE({token: id for id, token in enumerate(tokens)}, pairs, unk_token="<unk>",
                                     fuse_unk=True, byte_fallback=True))
    spaces = normalizers.Replace(" ", SPACE)
    back = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if prepend:
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), spaces])
        tokenizer.decoder = decoders.Sequence(back + [decoders.Strip(" ", 1, 0)])
    else:
        tokenizer.normalizer = spaces
        tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
        tokenizer.decoder = decoders.Sequence(back)
    return _finish(tokenizer, specials, kind, roles, (len(specials), len(tokens)), add_bos=True, add_bos_token=True,
                   add_eos_token=False, **config)


def llama2():
    return _spm(["<unk>", "<s>", "</s>"], "LlamaTokenizer", {"unk": "<unk>", "bos": "<s>", "eos": "</s>"},
                prepend=True, legacy=True)


def gemma():
    return _spm(["<pad>", "<eos>", "<bos>", "<unk>"], "GemmaTokenizer",
                {"pad": "<pad>", "eos": "<eos>", "bos": "<bos>", "unk": "<unk>"}, prepend=False,
                extra=[SPACE * 2, SPACE * 3])
