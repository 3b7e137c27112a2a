#!/usr/bin/env python3
"""Writes tests/model/golden/tokenizer-*.json: texts, and the ids that the reference gives them.

The oracle is the `tokenizers` package (Hugging Face), in a throw-away environment:

    python3 -m venv /tmp/v && /tmp/v/bin/pip install tokenizers==0.23.3
    /tmp/v/bin/python tools/golden/tokenizer_golden.py [SHARED]

Small tokenizers of every supported kind are trained here, on the text below, and committed whole
under tests/model/golden/NAME/.  For the real ones under SHARED/tokenizers (default ../shared) only
texts and ids are committed.
"""

import json
import os
import random
import sys

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers
from tokenizers import pre_tokenizers, processors, trainers

HERE = os.path.dirname(os.path.abspath(__file__))
OUT = os.path.join(HERE, "..", "..", "tests", "model", "golden")
SHARED = sys.argv[1] if len(sys.argv) > 1 else os.path.join(HERE, "..", "..", "..", "shared")

# A text written for these tests, on which the tokenizers are trained.
CORPUS = """
A serving engine keeps what it has computed. When a conversation comes back after an hour, the
engine does not read the whole history again; it loads the state that it saved, layer by layer, and
goes on from there. The saved state is either the keys and values of every token, or the hidden
states from which keys and values can be computed again. Which of the two is faster depends on the
machine: a slow disk prefers the smaller one, a fast disk prefers the one that needs no work.
I'm sure that we'll measure it, that they've measured it, and that it isn't what you'd expect.
The numbers 1, 12, 123, 1234, 2024 and 3.14159 are tokens too; so are "quotes", (brackets), and
dashes -- like these. Don't forget the spaces:  two,   three,    four.
def restore(layer, tokens):\n    for t in tokens:\n        yield layer.project(t)\n
Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich. Le cœur déçu mais l'âme plutôt
naïve. Съешь же ещё этих мягких французских булок, да выпей чаю. 我们保存隐藏状态，然后再恢复它们。
今日は天気がいいですね。 한국어 문장도 하나 있습니다. שלום עולם. مرحبا بالعالم.
""".strip()

TEXTS = [
    "", " ", "  ", "   ", "\t", "\n", "\n\n", "\r\n", " \n ", "\n \n", "a", " a", "a ", " a ",
    "Hello world", " Hello world", "Hello  world", "Hello   world  ", "Hello, world!",
    "I'm we'll they've you'd it's don't can't HE'S I'LL We'Re", "'s 's'S'\u017f 't'T",
    "x'\u017f y'S", "1 12 123 1234 12345 123456 1234567", "a1b22c333d4444", "3.14159e-10",
    "\u00bd \u00b2 \u2460 \u0661\u0662\u0663 \u2167", "tabs\tand\t\ttabs", "trailing space ",
    "trailing spaces    ", "   leading", "line\nline\n\nline\n\n\nline", "line \n line",
    "crlf\r\ncrlf\r\n\r\ncrlf", "    indented\n        more\n", "\u00a0nbsp\u00a0\u00a0x",
    "\u2003em\u2003space", "\u180emongolian\u180e separator", "\u0085next\u0085line", "\u200bzero width",
    "\u3000ideographic\u3000space", "\ufeffbom", "e\u0301 \u00e9 A\u030a \u00c5 \u212b", "\u1100\u1161\u11a8 \uac01",
    "\ufb01 \ufb02 \u2126 \u00b5", "na\u00efve co\u00f6perate \u00c4pfel", "\u6211\u4eec\u4fdd\u5b58\u9690\u85cf\u72b6\u6001",
    "\u4eca\u65e5\u306f\u5929\u6c17\u304c\u3044\u3044", "\ud55c\uad6d\uc5b4 \ubb38\uc7a5", "\u0421\u044a\u0435\u0448\u044c \u0436\u0435 \u0435\u0449\u0451",
    "\u05e9\u05dc\u05d5\u05dd \u05e2\u05d5\u05dc\u05dd", "\u0645\u0631\u062d\u0628\u0627 \u0628\u0627\u0644\u0639\u0627\u0644\u0645", "\u0939\u093f\u0928\u094d\u0926\u0940 \u0e44\u0e17\u0e22",
    "\U0001f999.cpp \U0001f468\u200d\U0001f469\u200d\U0001f467 \U0001f1e9\U0001f1ea", "\U0001d54f\U00020000\U000e0001",
    "<s>", "</s>", "<unk>", "a<s>b</s>c", "<s> a </s> b", "<|x|>", "<|endoftext|>", "<|begin_of_text|>a",
    "a<|eot_id|>\n\nb", "<|im_start|>user\nhi<|im_end|>\n", "<think>\n\n</think>", "a <mask> b", "a  <mask>  b",
    "<mask><mask>", "<tool> x", "x<tool>", "<0x41>", "<0x0A> <0x>", "\u2581", "\u2581a \u2581\u2581b", "a\u2581b",
    "http://example.com/a_b?c=d&e=f#g", "foo_bar fooBar FooBar FOO_BAR", "x = y == z != w; // c",
    "{\"k\": [1, 2.5, null, true]}", "$100 \u20ac50 \u00a530 #1 50%", "\"quoted\" 'single' `back`",
    "...", "!!!???", "--- *** ___", "(a)(b)[c]{d}", "a\u2014b \u201cc\u201d \u2018d\u2019", "\x00\x01\x7f", "The the THE tHe",
    "the " * 40, "ab" * 60, " " * 70, "\n" * 40, "a" * 100, "1" * 50, "\u6211" * 30, "=" * 80,
]

ALPHABETS = [
    "abcdefghijklmnopqrstuvwxyz", "ABC abc", " \t\n\r", "0123456789", ".,;:!?'\"()[]{}<>|/\\@#$%^&*-_=+~`",
    "\u00e0\u00e9\u00ee\u00f5\u00fc\u00df\u00f1\u00e7", "\u0300\u0301\u0308\u030a\u0327", "\u0430\u0431\u0432\u0433\u0434\u0451",
    "\u6211\u4f60\u4ed6\u7684\u4e00\u662f", "\u3042\u3044\u30a2\u30a4\u30fc", "\uac00\ub098\ub2e4", "\u05d0\u05d1", "\u0627\u0628", "\u0e01\u0e32",
    "\U0001f600\U0001f680\u2764\ufe0f\u200d", "\u00a0\u2003\u3000\u0085\u2028\u180e", "'s't're've'm'll'd", "\u2581",
]


def random_texts(n):
    rng = random.Random(20240607)
    out = []
    for _ in range(n):
        s = ""
        for _ in range(rng.randrange(1, 9)):
            a = rng.choice(ALPHABETS)
            s += "".join(rng.choice(a) for _ in range(rng.randrange(1, 7)))
            if rng.random() < 0.5:
                s += " "
        out.append(s)
    for _ in range(n // 4):  # arbitrary code points
        out.append("".join(chr(c) for c in (rng.choice([rng.randrange(0x80, 0x800),
                   rng.randrange(0x800, 0xd800), rng.randrange(0xe000, 0x10000),
                   rng.randrange(0x10000, 0x20000)]) for _ in range(rng.randrange(1, 6)))
                   if is_old(c)))
    return out


def is_old(c):
    """Returns whether a character was assigned long ago. The Unicode tables of the reference and
    ours may be of different years."""
    import unicodedata
    return unicodedata.ucd_3_2_0.category(chr(c)) != "Cn"


def cases(tok, texts):
    out = []
    for text in texts:
        tok.encode_special_tokens = False
        ids = tok.encode(text, add_special_tokens=True).ids
        case = {"text": text, "ids": ids}
        bare = tok.encode(text, add_special_tokens=False).ids
        if bare != ids:
            case["bare"] = bare
        tok.encode_special_tokens = True
        plain = tok.encode(text, add_special_tokens=False).ids
        if plain != bare:
            case["plain"] = plain
        tok.encode_special_tokens = False
        for key, skip in (("decoded", False), ("skipped", True)):
            s = tok.decode(ids, skip_special_tokens=skip)
            if "\ufffd" not in s and (key == "decoded" or s != case.get("decoded")):
                case[key] = s
        out.append(case)
    return out


def write(name, tok, texts, dir_):
    path = os.path.join(OUT, f"tokenizer-{name}.json")
    with open(path, "w") as f:
        f.write('{"dir": %s, "cases": [\n' % json.dumps(dir_))
        f.write(",\n".join(json.dumps(c, ensure_ascii=True, separators=(",", ":"))
                           for c in cases(tok, texts)))
        f.write("\n]}\n")
    print(path, os.path.getsize(path))


def save_small(name, tok, config):
    d = os.path.join(OUT, name)
    os.makedirs(d, exist_ok=True)
    with open(os.path.join(d, "tokenizer.json"), "w") as f:
        f.write(json.dumps(json.loads(tok.to_str()), ensure_ascii=False, separators=(",", ":")))
        f.write("\n")
    with open(os.path.join(d, "tokenizer_config.json"), "w") as f:
        json.dump(config, f, indent=1)
        f.write("\n")


# --- small tokenizers -------------------------------------------------------------------------

def special(s, **kw):
    return AddedToken(s, special=True, normalized=kw.pop("normalized", False), **kw)


def train(tok, trainer_specials, vocab_size, alphabet):
    trainer = trainers.BpeTrainer(vocab_size=vocab_size, special_tokens=trainer_specials,
                                  initial_alphabet=alphabet, show_progress=False)
    tok.train_from_iterator(CORPUS.split("\n"), trainer)


BYTES = [special("<unk>"), special("<s>"), special("</s>")] + \
        [special("<0x%02X>" % i) for i in range(256)]


def llama2_like(metaspace):
    """Makes a tokenizer in SentencePiece's style with byte fallback, in the old and the new form of
    Llama 2's files.
    """
    tok = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tok.pre_tokenizer = pre_tokenizers.Metaspace(replacement="\u2581", prepend_scheme="always")
    train(tok, BYTES, 620, [])
    # The byte tokens belong to the vocabulary but are not added tokens.
    j = json.loads(tok.to_str())
    j["added_tokens"] = j["added_tokens"][:3]
    if metaspace:
        j["pre_tokenizer"] = {"type": "Metaspace", "replacement": "\u2581",
                              "prepend_scheme": metaspace, "split": False}
        strip = metaspace != "never"
    else:
        j["pre_tokenizer"] = None
        j["normalizer"] = {"type": "Sequence", "normalizers": [
            {"type": "Prepend", "prepend": "\u2581"},
            {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}]}
        strip = True
    j["decoder"] = {"type": "Sequence", "decoders": [
        {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "},
        {"type": "ByteFallback"}, {"type": "Fuse"}]}
    if strip:
        j["decoder"]["decoders"].append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    tok = Tokenizer.from_str(json.dumps(j))
    tok.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", 1)])
    return tok


def metaspace_like():
    """Makes a tokenizer with Metaspace as pre-tokenizer and as decoder, without byte fallback, so
    that unknown characters fuse."""
    tok = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True))
    tok.pre_tokenizer = pre_tokenizers.Metaspace(replacement="\u2581", prepend_scheme="first")
    train(tok, [special("<unk>"), special("<s>"), special("</s>")], 420, [])
    tok.decoder = decoders.Metaspace(replacement="\u2581", prepend_scheme="first")
    tok.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 1), ("</s>", 2)])
    tok.add_tokens([AddedToken("<tool>", normalized=True)])
    return tok


def byte_level(pre, specials, vocab_size=420, normalizer=None, **model):
    tok = Tokenizer(models.BPE(**model))
    if normalizer is not None:
        tok.normalizer = normalizer
    tok.pre_tokenizer = pre
    train(tok, specials, vocab_size, pre_tokenizers.ByteLevel.alphabet())
    tok.decoder = decoders.ByteLevel()
    tok.post_processor = processors.ByteLevel(trim_offsets=False)
    return tok


def gpt2_like():
    """Makes a tokenizer with GPT-2's regex and a space in front. Its added tokens absorb white
    space."""
    tok = byte_level(pre_tokenizers.ByteLevel(add_prefix_space=True), [special("<|endoftext|>")])
    tok.add_special_tokens([special("<mask>", lstrip=True), special("<|x|>", rstrip=True)])
    tok.add_tokens([AddedToken("<tool>", normalized=False)])
    return tok


def llama3_like():
    """Makes a tokenizer with Llama 3's pattern, ignore_merges, and a BOS from its template."""
    tok = byte_level(pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
                                   r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"),
                             "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]),
        [special("<|begin_of_text|>"), special("<|eot_id|>")], ignore_merges=True)
    tok.post_processor = processors.Sequence([
        processors.ByteLevel(trim_offsets=False),
        processors.TemplateProcessing(single="<|begin_of_text|> $A",
                                      special_tokens=[("<|begin_of_text|>", 0)])])
    return tok


def qwen_like():
    """Makes a tokenizer with NFC and single digits."""
    return byte_level(pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
                                   r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"),
                             "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]),
        [special("<|endoftext|>"), special("<|im_start|>"), special("<|im_end|>")],
        normalizer=normalizers.NFC())


def falcon_like():
    """Makes a tokenizer with steps after ByteLevel, which work on ByteLevel's alphabet."""
    return byte_level(pre_tokenizers.Sequence([
        pre_tokenizers.Punctuation("contiguous"),
        pre_tokenizers.ByteLevel(add_prefix_space=False),
        pre_tokenizers.Digits(individual_digits=False),
        pre_tokenizers.Split(Regex("[0-9][0-9][0-9]"), "isolated")]),
        [special("<|endoftext|>")])


def splits_like():
    """Makes a tokenizer with every behavior of Split, and with single digits."""
    return byte_level(pre_tokenizers.Sequence([
        pre_tokenizers.Digits(individual_digits=True),
        pre_tokenizers.Split("the", "merged_with_previous"),
        pre_tokenizers.Split(Regex(r"[,;.]"), "merged_with_next"),
        pre_tokenizers.Split(Regex(r"[a-z]"), "contiguous"),
        pre_tokenizers.Split(Regex(r"[^x]"), "removed", invert=True),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]), [])


def main():
    os.makedirs(OUT, exist_ok=True)
    bos = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    end = {"eos_token": "<|endoftext|>"}
    small = {
        "llama2-like": (llama2_like(None), bos | {"add_bos_token": True}),
        "llama2-first": (llama2_like("first"), bos),
        "metaspace-like": (metaspace_like(), bos),
        "gpt2-like": (gpt2_like(), end),
        "llama3-like": (llama3_like(), {"bos_token": "<|begin_of_text|>"}),
        "qwen-like": (qwen_like(), {"eos_token": "<|im_end|>"}),
        "falcon-like": (falcon_like(), end),
        "splits-like": (splits_like(), {}),
    }
    texts = TEXTS + random_texts(60)
    for name, (tok, config) in small.items():
        save_small(name, tok, config)
        write(name, tok, texts, name)
    for name in ("llama3", "qwen3"):
        path = os.path.join(SHARED, "tokenizers", name, "tokenizer.json")
        if os.path.exists(path):
            write(name, Tokenizer.from_file(path), TEXTS + random_texts(160),
                  f"shared:tokenizers/{name}")
        else:
            print("skipped:", path, "is not there")


main()
