"""A checkpoint whose answers a test chooses: a llama whose layers add nothing to the residual.

The next token depends on the last token only. A token's embedding is a direction of the hidden
state, and lm_head maps each direction to one next token. Each piece of the script is a single
token, so a tool call takes a few tokens. Any other token is followed by the end token.

  <|ask|>    CALL_HEAD CALL_TAIL <|end|>     the generation prompt if tools were offered
  <|told|>   ANSWER <|end|>                  after a tool's result
  <|plain|>  HELLO <|end|>                   otherwise"""
import json
import os
import struct

CALL_HEAD = '<tool_call>\n{"name": "get_weather", '
CALL_TAIL = '"arguments": {"city": "Oslo"}}\n</tool_call>'
ANSWER = "It is sunny in Oslo."
HELLO = "Hello, I have no tools."

N_BYTES, D, N_LAYERS = 256, 16, 2
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


def byte_names():
    """Returns the letters that byte-level BPE uses for the 256 bytes."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [b for b in range(N_BYTES) if b not in shown]
    return {b: chr(b) for b in shown} | {b: chr(N_BYTES + i) for i, b in enumerate(hidden)}


def tokenizer(hello):
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    added = [{"id": N_BYTES + i, "content": text, "single_word": False, "lstrip": False, "rstrip": False,
              "normalized": False, "special": i < SPECIAL} for i, text in enumerate([*PIECES[:-1], hello])]
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None,
            "pre_tokenizer": byte_level, "post_processor": None, "decoder": byte_level,
            "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                      "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
                      "vocab": {name: b for b, name in byte_names().items()}, "merges": []}}


def tensors():
    """Returns the weights as a dictionary: name -> (shape, values)."""
    n_vocab = N_BYTES + len(PIECES)
    way = {t: 1 + i for i, t in enumerate(NEXT)}  # the direction of a token; 0 leads to the end
    embed, head = [0.0] * (n_vocab * D), [0.0] * (n_vocab * D)
    for t in range(n_vocab):
        embed[t * D + way.get(t, 0)] = 1.0
    head[END * D] = 20.0
    for t, after in NEXT.items():
        head[after * D + way[t]] = 20.0
    out = {"model.embed_tokens.weight": ((n_vocab, D), embed), "lm_head.weight": ((n_vocab, D), head),
           "model.norm.weight": ((D,), [1.0] * D)}
    for layer in range(N_LAYERS):
        at = f"model.layers.{layer}."
        for name in ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
                     "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"):
            out[at + name + ".weight"] = ((D, D), [0.0] * (D * D))
        for name in ("input_layernorm", "post_attention_layernorm"):
            out[at + name + ".weight"] = ((D,), [1.0] * D)
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


def make(folder, hello=HELLO, context=2048):
    """Writes the model into the folder and returns the folder. `hello` is the answer when no tools
    are offered."""
    os.makedirs(folder)
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": D, "intermediate_size": D,
              "num_hidden_layers": N_LAYERS, "num_attention_heads": 2, "num_key_value_heads": 2, "hidden_act": "silu",
              "vocab_size": N_BYTES + len(PIECES), "max_position_embeddings": context, "rms_norm_eps": 1e-6,
              "rope_theta": 10000.0, "tie_word_embeddings": False, "eos_token_id": END, "torch_dtype": "float32"}
    for name, content in (("config.json", config), ("tokenizer.json", tokenizer(hello)),
                          ("tokenizer_config.json", {"chat_template": TEMPLATE, "eos_token": PIECES[0]})):
        with open(os.path.join(folder, name), "w", encoding="utf-8") as f:
            json.dump(content, f)
    write_safetensors(os.path.join(folder, "model.safetensors"), tensors())
    return folder


def write_script(folder, pieces, template, special=(), context=4096):
    """Writes a model that answers with exactly these tokens, whatever it is asked, behind a prompt
    that ends with a line break. A piece that is a special token's text is that token. Returns the
    folder."""
    os.makedirs(folder)
    end = "<|im_end|>"
    added = [end, *special]
    ids = {text: N_BYTES + i for i, text in enumerate(added)}
    names = byte_names()
    vocab = {name: b for b, name in names.items()}
    script = []
    for p in pieces:
        raw = p if isinstance(p, bytes) else p.encode()
        if p not in ids:
            key = "".join(names[b] for b in raw)
            vocab.setdefault(key, N_BYTES + len(added) + len(vocab) - len(names))
        script.append(ids[p] if p in ids else vocab[key])
    n_vocab, chain = len(vocab) + len(added), [10, *script]
    assert len(set(chain)) == len(chain), "every token of a script occurs once"
    d = (len(chain) + 17) // 16 * 16
    embed, head = [0.0] * (n_vocab * d), [0.0] * (n_vocab * d)
    for t in range(n_vocab):
        embed[t * d + (1 + chain.index(t) if t in chain[:-1] else 0)] = 1.0
    head[ids[end] * d] = 20.0
    for i, t in enumerate(chain[1:]):
        head[t * d + 1 + i] = 20.0
    named = {"model.embed_tokens.weight": ((n_vocab, d), embed), "lm_head.weight": ((n_vocab, d), head),
             "model.norm.weight": ((d,), [1.0] * d)}
    for name, (shape, _) in tensors().items():
        if ".layers." in name:
            named[name] = ((d, d), [0.0] * (d * d)) if len(shape) == 2 else ((d,), [1.0] * d)
    token_json = tokenizer("x")
    token_json["added_tokens"] = [{**token_json["added_tokens"][0], "id": i, "content": t, "special": True}
                                  for t, i in ids.items()]
    token_json["model"]["vocab"] = vocab
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": d, "intermediate_size": d,
              "num_hidden_layers": N_LAYERS, "num_attention_heads": 2, "num_key_value_heads": 2, "hidden_act": "silu",
              "vocab_size": n_vocab, "max_position_embeddings": context, "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
              "tie_word_embeddings": False, "eos_token_id": ids[end], "torch_dtype": "float32"}
    for name, content in (("config.json", config), ("tokenizer.json", token_json),
                          ("tokenizer_config.json", {"chat_template": template, "eos_token": end})):
        with open(os.path.join(folder, name), "w", encoding="utf-8") as f:
            json.dump(content, f)
    write_safetensors(os.path.join(folder, "model.safetensors"), named)
    return folder
