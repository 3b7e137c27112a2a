"""Writes a GGUF file of a known shape with random quantised weights, to measure speed and memory.

  made_gguf.py SHAPE OUT.gguf [--types q4_k_m|q4_1|q4_0|q8_0|bf16|mxfp4] [--layers N] [--vocab F.gguf] [--bytes]
  SHAPE: 1b (Llama-3.2-1B), 7b (Llama-2-7B), 135m (SmolLM2-135M), 30b-a3b (Qwen3-30B-A3B),
  gpt-oss-20b (its experts are MXFP4, with --types mxfp4 all others Q8_0),
  qwen3.5-0.8b (three recurrent layers for each layer of attention)

The tensors have the types that llama-quantize chooses: in q4_k_m the head is Q6_K, and W_v and
W_down are Q6_K in half of the layers.  The file has the vocabulary of --vocab; without it, none:
prompts are token ids (llama.cpp's server answers none without a vocabulary).  With --bytes only
tokens of single bytes keep their text, so a text that a form forces has one spelling in tokens.  The
values are small random numbers, so that no activation overflows; texts by such a model mean
nothing."""
import argparse

import gguf
import numpy as np

SHAPES = {
    "135m": dict(layers=30, embd=576, ff=1536, heads=9, kv=3, d_head=64, vocab=49152, tied=True),
    "1b": dict(layers=16, embd=2048, ff=8192, heads=32, kv=8, d_head=64, vocab=128256, tied=True),
    "7b": dict(layers=32, embd=4096, ff=11008, heads=32, kv=32, d_head=128, vocab=32000, tied=False),
    "30b-a3b": dict(layers=48, embd=2048, ff=768, heads=32, kv=4, d_head=128, vocab=151936, tied=False,
                    experts=128, used=8),
    "gpt-oss-20b": dict(layers=24, embd=2880, ff=2880, heads=64, kv=8, d_head=64, vocab=201088, tied=False,
                        experts=32, used=4),
    "qwen3.5-0.8b": dict(layers=24, embd=1024, ff=3584, heads=8, kv=2, d_head=256, vocab=248320, tied=True,
                         mixing=16, values=16, width=128),  # heads of Q and of V in recurrent layers, their width
    "qwen3.5-35b-a3b": dict(layers=40, embd=2048, ff=512, heads=16, kv=2, d_head=256, vocab=248320, tied=False,
                            mixing=16, values=32, width=128, experts=256, used=8, shared=512),
}
parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
parser.add_argument("shape", choices=SHAPES)
parser.add_argument("out")
parser.add_argument("--types", choices=("q4_k_m", "q4_1", "q4_0", "q8_0", "bf16", "mxfp4"), default="q4_k_m")
parser.add_argument("--layers", type=int)
parser.add_argument("--vocab", help="GGUF file whose tokenizer is copied")
parser.add_argument("--bytes", action="store_true", help="no token of the vocabulary has more than one byte")
args = parser.parse_args()
s = dict(SHAPES[args.shape])
fields = gguf.GGUFReader(args.vocab).fields if args.vocab else {}
PAIR = "\u00c3 \u00a9"  # of --bytes: the bytes of an e with an accent, since readers want a merge
if fields:
    s["vocab"] = len(fields["tokenizer.ggml.tokens"].data)
n_layers = args.layers or s["layers"]
Q = gguf.GGMLQuantizationType
rng = np.random.default_rng(1)

# Weights per block, bytes per block, and the offsets of the block's f16 scales (the second one is
# the minimum).
BLOCKS = {Q.Q4_0: (32, 18, [0]), Q.Q4_1: (32, 20, [0, 2]), Q.Q8_0: (32, 34, [0]), Q.Q4_K: (256, 144, [0, 2]),
          Q.Q6_K: (256, 210, [208]), Q.MXFP4: (32, 17, [])}
# Scales that make weights of about 0.02. They allow for the range of a block's numbers and for the
# second level of scales.
SCALE = {Q.Q4_0: 0.004, Q.Q4_1: 0.004, Q.Q8_0: 0.0003, Q.Q4_K: 0.0001, Q.Q6_K: 0.00001}


def more_bits(layer):
    return layer < n_layers // 8 or layer >= 7 * n_layers // 8 or (layer - n_layers // 8) % 3 == 2


def kind_of(name, layer):
    if args.types == "mxfp4":
        return Q.MXFP4 if name.endswith("_exps") else Q.Q8_0
    if args.types != "q4_k_m":
        if args.types in ("q4_0", "q4_1") and (name == "output" or s["tied"] and name == "token_embd"):
            return Q.Q8_0 if args.shape == "135m" else Q.Q6_K
        return getattr(Q, args.types.upper())
    if name == "output" or name == "token_embd" and s["tied"]:
        return Q.Q6_K
    return Q.Q6_K if name in ("attn_v", "ffn_down", "ffn_down_exps") and more_bits(layer) else Q.Q4_K


def blocks(kind, rows, cols):
    """Returns rows x cols random weights in the type's blocks."""
    if kind == Q.BF16:
        values = rng.standard_normal((rows, cols), dtype=np.float32) * np.float32(0.02)
        return (values.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8).reshape(rows, cols * 2)
    of, size, scales = BLOCKS[kind]
    n = rows * cols // of
    raw = rng.integers(0, 256, (n, size), dtype=np.uint8)
    for at in scales:
        d = (SCALE[kind] * (0.5 + rng.random(n)) * (-7 if at == 2 and kind == Q.Q4_1 else 1)).astype(np.float16)
        raw[:, at : at + 2] = d.view(np.uint8).reshape(n, 2)
    if kind == Q.MXFP4:
        raw[:, 0] = 119 + raw[:, 0] % 3  # exponents
    return raw.reshape(rows, cols // of * size)


experts = s.get("experts", 0)
is_oss = args.shape == "gpt-oss-20b"
mixing, values, width, shared = (s.get(name, 0) for name in ("mixing", "values", "width", "shared"))
w = gguf.GGUFWriter(args.out, "qwen35moe" if mixing and experts else "qwen35" if mixing else "gpt-oss" if is_oss else "qwen3moe" if experts else "llama")
w.add_block_count(n_layers)
w.add_context_length(16384 if mixing else 4096)
w.add_embedding_length(s["embd"])
w.add_feed_forward_length(s["ff"])
w.add_head_count(s["heads"])
w.add_head_count_kv(s["kv"])
w.add_rope_dimension_count(s["d_head"] // 4 if mixing else s["d_head"])
if mixing:
    w.add_key_length(s["d_head"])
    w.add_value_length(s["d_head"])
    w.add_rope_dimension_sections([11, 11, 10, 0])
    w.add_ssm_conv_kernel(4)
    w.add_ssm_state_size(width)
    w.add_ssm_group_count(mixing)
    w.add_ssm_time_step_rank(values)
    w.add_ssm_inner_size(values * width)
    w.add_full_attention_interval(4)
if experts:
    w.add_expert_count(experts)
    w.add_expert_used_count(s["used"])
    w.add_expert_feed_forward_length(s["ff"])
if shared:
    w.add_expert_shared_feed_forward_length(shared)
if experts and not mixing:
    w.add_key_length(s["d_head"])
    w.add_value_length(s["d_head"])
if is_oss:
    w.add_sliding_window(128)
    w.add_rope_scaling_type(gguf.RopeScalingType.YARN)
    w.add_rope_scaling_factor(32.0)
    w.add_rope_scaling_orig_ctx_len(4096)
w.add_rope_freq_base(10000.0)
w.add_layer_norm_rms_eps(1e-5)
w.add_vocab_size(s["vocab"])
if not fields:
    w.add_tokenizer_model("no_vocab")
for key, field in fields.items():
    value = field.contents()
    if args.bytes and key == "tokenizer.ggml.merges":
        value = [PAIR]
    if args.bytes and key == "tokenizer.ggml.tokens":
        keep = PAIR.replace(" ", "")
        value = [t if len(t) == 1 or t == keep or t.startswith("<|") else f"<|no text {i}|>" for i, t in enumerate(value)]
    if key.startswith("tokenizer."):
        w.add_key_value(key, value, field.types[0], field.types[1] if len(field.types) > 1 else None)

todo = []


def add(name, layer, rows, cols, n=1):
    """Adds a vector (rows 0), a matrix, or a matrix for each of n experts."""
    end = "" if name.endswith(".bias") or name == "ssm_a" else ".weight"
    full = f"blk.{layer}.{name}{end}" if layer >= 0 else f"{name}{end}"
    kind = Q.F32 if rows == 0 or name in ("ffn_gate_inp", "ssm_conv1d") or name.endswith(".bias") else kind_of(name, layer)
    if kind == Q.F32:
        shape = (cols,) if rows == 0 else (rows, cols)
        w.add_tensor_info(full, shape, np.dtype(np.float32), max(rows, 1) * cols * 4)
    else:
        bytes_a_row = cols * 2 if kind == Q.BF16 else cols // BLOCKS[kind][0] * BLOCKS[kind][1]
        shape = (rows, bytes_a_row) if n == 1 else (n, rows, bytes_a_row)
        w.add_tensor_info(full, shape, np.dtype(np.uint8), n * rows * bytes_a_row, raw_dtype=kind)
    todo.append((kind, rows, cols, -n if name == "ssm_a" else n))  # a decay is negative


add("token_embd", -1, s["vocab"], s["embd"])
add("output_norm", -1, 0, s["embd"])
if not s["tied"]:
    add("output", -1, s["vocab"], s["embd"])
for l in range(n_layers):
    q, kv = s["heads"] * s["d_head"], s["kv"] * s["d_head"]
    add("attn_norm", l, 0, s["embd"])
    if mixing and (l + 1) % 4 != 0:
        add("attn_qkv", l, (2 * mixing + values) * width, s["embd"])
        add("attn_gate", l, values * width, s["embd"])
        add("ssm_conv1d", l, (2 * mixing + values) * width, 4)
        add("ssm_beta", l, values, s["embd"])
        add("ssm_alpha", l, values, s["embd"])
        add("ssm_dt.bias", l, 0, values)
        add("ssm_a", l, 0, values)
        add("ssm_norm", l, 0, width)
        add("ssm_out", l, s["embd"], values * width)
    else:
        add("attn_q", l, 2 * q if mixing else q, s["embd"])  # with rows of its gate
        add("attn_k", l, kv, s["embd"])
        add("attn_v", l, kv, s["embd"])
        add("attn_output", l, s["embd"], q)
        for name in ("attn_q_norm", "attn_k_norm") if mixing else ():
            add(name, l, 0, s["d_head"])
    add("post_attention_norm" if is_oss or mixing else "ffn_norm", l, 0, s["embd"])
    end = "_exps" if experts else ""
    if is_oss:
        for name, n in (("attn_q", q), ("attn_k", kv), ("attn_v", kv), ("attn_output", s["embd"]), ("ffn_gate_inp", experts)):
            add(name + ".bias", l, 0, n)
        for name in ("gate", "up", "down"):
            add(f"ffn_{name}_exps.bias", l, experts, s["ff"])
        add("attn_sinks", l, 0, s["heads"])
        add("ffn_gate_inp", l, experts, s["embd"])
    elif experts:
        for name in () if mixing else ("attn_q_norm", "attn_k_norm"):
            add(name, l, 0, s["d_head"])
        add("ffn_gate_inp", l, experts, s["embd"])
    if shared:
        add("ffn_gate_inp_shexp", l, 0, s["embd"])
        for name, rows, cols in (("gate", shared, s["embd"]), ("up", shared, s["embd"]), ("down", s["embd"], shared)):
            add(f"ffn_{name}_shexp", l, rows, cols)
    add("ffn_gate" + end, l, s["ff"], s["embd"], experts or 1)
    add("ffn_up" + end, l, s["ff"], s["embd"], experts or 1)
    add("ffn_down" + end, l, s["embd"], s["ff"], experts or 1)
w.write_header_to_file()
w.write_kv_data_to_file()
w.write_ti_data_to_file()
for kind, rows, cols, n in todo:
    if kind == Q.F32:
        values = rng.standard_normal((rows, cols), dtype=np.float32) / cols**0.5 if rows else np.sign(n) * np.ones(cols)
        w.write_tensor_data(values.astype(np.float32))
    else:
        w.write_tensor_data(blocks(kind, n * rows, cols))
w.close()
