"""A checkpoint whose answers a test chooses: a llama whose layers add nothing to the residual.

The next token depends on the last token only. A token's embedding is a direction of the hidden
state, and lm_head maps each direction to one next token. Each piece of the script is a single
token, so a tool call takes a few tokens. Any other token is followed by the end token.

  <|ask|>    CALL_HEAD CALL_TAIL <|end|>     the generation prompt if tools were offered
  <|told|>   ANSWER <|end|>                  after a tool's result
  <|plain|>  HELLO <|end|>                   otherwise"""
import json
import math
import os
import random
import struct

CALL_HEAD = '<tool_call>\n{"name": "get_weather", '
CALL_TAIL = '"arguments": {"city": "Oslo"}}\n</tool_call>'
ANSWER = "It is sunny in Oslo."
HELLO = "Hello, I have no tools."

N_BYTES, N_LAYERS = 256, 2
PIECES = ["<|end|>", "<|ask|>", "<|told|>", "<|plain|>", CALL_HEAD, CALL_TAIL, ANSWER, HELLO]
SPECIAL = 4  # ids below this are never shown
END, ASK, TOLD, PLAIN, HEAD, TAIL, SAYS, GREETS = range(N_BYTES, N_BYTES + len(PIECES))
NEXT = {ASK: HEAD, HEAD: TAIL, TOLD: SAYS, PLAIN: GREETS}

TEMPLATE = """{% if tools %}Call with <tool_call>: {{ tools | tojson }}
{% endif %}{% for m in messages %}{% if m.role == 'tool' %}<tool_response>{{ m.content }}</tool_response>
{% else %}{{ m.role }}: {{ m.content or '' }}{% for c in m.tool_calls or [] %}<tool_call>
{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments }}}
</tool_call>{% endfor %}
{% endif %}{% endfor %}{% if add_generation_prompt %}{% if messages[-1].role == 'tool' %}<|told|>{% elif tools %}<|ask|>{% else %}<|plain|>{% endif %}{% endif %}"""

# For agents. Like most templates: one system message, then the tools. It refuses two messages of the user in a row.
AGENTS = """{% set n = namespace(user=false) %}{% if messages[0].role == 'system' %}{{ messages[0].content }}
{% endif %}{% for t in tools or [] %}{{ t | tojson }}
{% endfor %}{% for m in messages %}{% if m.role == 'system' and not loop.first %}{{ raise_exception('late system') }}{% endif %}{% if m.role == 'user' and n.user %}{{ raise_exception('two users') }}{% endif %}{% set n.user = m.role == 'user' %}{% if m.role == 'tool' %}<tool_response>
{{ m.content }}
</tool_response>
{% elif m.role != 'system' %}{{ m.role }}: {{ m.content or '' }}{% for c in m.tool_calls or [] %}<tool_call>
{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}
</tool_call>{% endfor %}
{% endif %}{% endfor %}{% if add_generation_prompt %}assistant: {% if messages[-1].role == 'tool' %}<|told|>{% elif 'LOOK FOR TOOLS' in messages[-1].content %}<|search|>{% elif tools %}<|ask|>{% else %}<|plain|>{% endif %}{% endif %}"""


def byte_names():
    """Returns the letters that byte-level BPE uses for the 256 bytes."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [b for b in range(N_BYTES) if b not in shown]
    return {b: chr(b) for b in shown} | {b: chr(N_BYTES + i) for i, b in enumerate(hidden)}


def tokenizer(added, pieces=()):
    """Returns a byte-level tokenizer. added: pairs of an added token's text and whether it is special;
    pieces: bytes of tokens that no text is encoded to, so a character may lie in two of them."""
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    names = byte_names()
    vocab = {name: b for b, name in names.items()}
    vocab |= {"".join(names[b] for b in piece): N_BYTES + i for i, piece in enumerate(pieces)}
    listed = [{"id": len(vocab) + i, "content": text, "single_word": False, "lstrip": False, "rstrip": False,
               "normalized": False, "special": special} for i, (text, special) in enumerate(added)]
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": listed, "normalizer": None,
            "pre_tokenizer": byte_level, "post_processor": None, "decoder": byte_level,
            "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                      "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "vocab": vocab,
                      "merges": []}}


def tensors(n_vocab, end, following):
    """Returns the weights as a dictionary: name -> (shape, values). A token of `following` is followed
    by the token that it names, each other token by `end`."""
    d = max(16, (len(following) + 16) // 16 * 16)
    way = {t: 1 + i for i, t in enumerate(following)}  # the direction of a token; 0 leads to the end
    embed, head = [0.0] * (n_vocab * d), [0.0] * (n_vocab * d)
    for t in range(n_vocab):
        embed[t * d + way.get(t, 0)] = 1.0
    head[end * d] = 20.0
    for t, after in following.items():
        head[after * d + way[t]] = 20.0
    out = {"model.embed_tokens.weight": ((n_vocab, d), embed), "lm_head.weight": ((n_vocab, d), head),
           "model.norm.weight": ((d,), [1.0] * d)}
    for layer in range(N_LAYERS):
        at = f"model.layers.{layer}."
        for name in ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
                     "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"):
            out[at + name + ".weight"] = ((d, d), [0.0] * (d * d))
        for name in ("input_layernorm", "post_attention_layernorm"):
            out[at + name + ".weight"] = ((d,), [1.0] * d)
    return out


def pair_tensors(n_vocab, end, following):
    """Returns weights whose next token depends on the last two. following: dictionary: (last but one, last)
    -> next; any other pair is followed by `end`. The first layer's attention looks at the token before."""
    following = {pair: after for pair, after in following.items() if after != end}
    known = sorted({t for pair in following for t in pair})
    slot = {t: 2 + i for i, t in enumerate(known)}  # 0: one for all tokens; 1: the tokens without a slot
    m = len(known) + 2
    d = (2 * m + 31) // 32 * 32
    out = tensors(n_vocab, end, {i: end for i in range(d - 16)})  # for its shapes
    embed, head = [0.0] * (n_vocab * d), [0.0] * (n_vocab * d)
    for t in range(n_vocab):
        embed[t * d] = embed[t * d + slot.get(t, 1)] = 1.0
    head[end * d] = 30.0  # one of two tokens does not suffice
    for (before, last), after in following.items():
        head[after * d + slot[last]] = head[after * d + m + slot[before]] = 20.0
    out["model.embed_tokens.weight"], out["lm_head.weight"] = ((n_vocab, d), embed), ((n_vocab, d), head)
    q, k, v, o = ([0.0] * (d * d) for _ in range(4))
    half, a = d // 4, math.sqrt(60 * math.sqrt(d / 2) / (d / 2))
    for i in range(half):  # the rotations of query and key agree one position apart
        angle = 10000.0 ** (-i / half)
        q[i * d], q[(i + half) * d], k[i * d] = a * math.cos(angle), -a * math.sin(angle), a
    for i in range(1, m):
        v[i * d + i], o[(m + i) * d + i] = 1.0, 1 / math.sqrt(d / 2)
    for name, w in zip("qkvo", (q, k, v, o)):
        out[f"model.layers.0.self_attn.{name}_proj.weight"] = ((d, d), w)
    return out


def write_safetensors(path, named):
    head, data = {}, b""
    for name, (shape, values) in named.items():
        raw = struct.pack(f"<{len(values)}f", *values)
        head[name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(head).encode()
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + data)


def write_model(folder, tok, tok_config, weights, end, context):
    d = weights["model.norm.weight"][0][0]
    n_vocab = weights["lm_head.weight"][0][0]
    os.makedirs(folder)
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": d, "intermediate_size": d,
              "num_hidden_layers": N_LAYERS, "num_attention_heads": 2, "num_key_value_heads": 2, "hidden_act": "silu",
              "vocab_size": n_vocab, "max_position_embeddings": context, "rms_norm_eps": 1e-6,
              "rope_theta": 10000.0, "tie_word_embeddings": False, "eos_token_id": end, "torch_dtype": "float32"}
    for name, content in (("config.json", config), ("tokenizer.json", tok), ("tokenizer_config.json", tok_config)):
        with open(os.path.join(folder, name), "w", encoding="utf-8") as f:
            json.dump(content, f)
    write_safetensors(os.path.join(folder, "model.safetensors"), weights)
    return folder


def make(folder, hello=HELLO, context=2048):
    """Writes the model into the folder and returns the folder. `hello` is the answer when no tools
    are offered."""
    added = [(text, i < SPECIAL) for i, text in enumerate([*PIECES[:-1], hello])]
    return write_model(folder, tokenizer(added), {"chat_template": TEMPLATE, "eos_token": PIECES[0]},
                       tensors(N_BYTES + len(PIECES), END, NEXT), END, context)


def make_chain(folder, pieces, template, end="<|end|>", special=(), context=4096, config_end=None):
    """Writes a model that answers with these pieces of bytes, each a token, when its prompt ends with a
    newline, and then with `end`, the tokenizer's EOS. config_end: the special token that config.json
    names as EOS instead."""
    added = [(text, True) for text in (end, *special)]
    first = N_BYTES + len(pieces)
    way = [ord("\n"), *range(N_BYTES, first), first]
    weights = tensors(first + len(added), first, dict(zip(way[:-1], way[1:])))
    config_id = first + [text for text, _ in added].index(config_end or end)
    return write_model(folder, tokenizer(added, pieces), {"chat_template": template, "eos_token": end}, weights,
                       config_id, context)


def write_script(folder, pieces, template, special=(), context=4096):
    """Writes a model that answers with exactly these tokens, whatever it is asked, behind a prompt
    that ends with a line break. A piece that is a special token's text is that token. Returns the
    folder."""
    end = "<|im_end|>"
    added = [end, *special]
    raw = {p: p if isinstance(p, bytes) else p.encode() for p in pieces if p not in added}
    own = [r for r in raw.values() if len(r) > 1]
    ids = {t: N_BYTES + i for i, t in enumerate([*own, *added])}
    chain = [10, *(ids[p] if p in added else ids.get(raw[p], raw[p][0]) for p in pieces)]
    assert len(set(chain)) == len(chain), "every token of a script occurs once"
    weights = tensors(N_BYTES + len(ids), ids[end], dict(zip(chain[:-1], chain[1:])))
    return write_model(folder, tokenizer([(t, True) for t in added], own), {"chat_template": template, "eos_token": end},
                       weights, ids[end], context)


def make_talker(folder, template, answers, end="<|stop|>", context=131072):
    """Writes a model with the demo model's vocabulary, so that a long prompt has a few tokens. answers:
    dictionary: a special token that ends the prompt -> the pieces of the answer, each a token."""
    with open(os.path.join(os.path.dirname(__file__), "..", "..", "models", "demo", "tokenizer.json"),
              encoding="utf-8") as f:
        tok = json.load(f)
    first = len(tok["model"]["vocab"])
    heads = [end, *answers]
    texts = heads + [piece for pieces in answers.values() for piece in pieces]
    tok["added_tokens"] += [{"id": first + i, "content": text, "single_word": False, "lstrip": False, "rstrip": False,
                             "normalized": False, "special": i < len(heads)} for i, text in enumerate(texts)]
    following, at = {}, first + len(heads)
    for i, pieces in enumerate(answers.values()):
        way = [first + 1 + i, *range(at, at + len(pieces))]
        following |= dict(zip(way, way[1:]))
        at += len(pieces)
    return write_model(folder, tok, {"chat_template": template, "eos_token": end, "bos_token": "<|begin|>"},
                       tensors(first + len(texts), first, following), first, context)


def make_reranker(folder):
    """Writes a small Qwen3 with random weights, a byte tokenizer, and the words that it judges by."""
    words = ["<|im_start|>", "<|im_end|>", "<think>", "</think>", "yes", "no"]
    d, heads, width, n_vocab, rng = 32, 2, 16, N_BYTES + len(words), random.Random(5)
    config = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": d, "intermediate_size": 48,
              "num_hidden_layers": 2, "num_attention_heads": heads, "num_key_value_heads": heads, "head_dim": width,
              "hidden_act": "silu", "vocab_size": n_vocab, "max_position_embeddings": 1024, "rms_norm_eps": 1e-6,
              "rope_theta": 10000.0, "tie_word_embeddings": True, "torch_dtype": "float32", "eos_token_id": N_BYTES + 1}
    shapes = {"model.embed_tokens.weight": (n_vocab, d), "model.norm.weight": (d,)}
    for layer in range(2):
        at = f"model.layers.{layer}."
        shapes |= {at + "self_attn.q_proj.weight": (heads * width, d), at + "self_attn.k_proj.weight": (heads * width, d),
                   at + "self_attn.v_proj.weight": (heads * width, d), at + "self_attn.o_proj.weight": (d, heads * width),
                   at + "self_attn.q_norm.weight": (width,), at + "self_attn.k_norm.weight": (width,),
                   at + "mlp.gate_proj.weight": (48, d), at + "mlp.up_proj.weight": (48, d), at + "mlp.down_proj.weight": (d, 48),
                   at + "input_layernorm.weight": (d,), at + "post_attention_layernorm.weight": (d,)}
    weights = {name: (shape, [rng.gauss(1 if len(shape) == 1 else 0, 0.3) for _ in range(math.prod(shape))])
               for name, shape in shapes.items()}
    os.makedirs(folder)
    for name, content in (("config.json", config), ("tokenizer.json", tokenizer([(w, i < 4) for i, w in enumerate(words)])),
                          ("tokenizer_config.json", {"eos_token": "<|im_end|>"})):
        with open(os.path.join(folder, name), "w", encoding="utf-8") as f:
            json.dump(content, f)
    with open(os.path.join(folder, "README.md"), "w") as f:
        f.write("---\nlicense: apache-2.0\n---\n\n# Qwen3-Reranker-0.6B\n")
    write_safetensors(os.path.join(folder, "model.safetensors"), weights)
    return folder
