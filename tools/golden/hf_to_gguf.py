#!/usr/bin/env python3
"""Writes a Hugging Face folder as a GGUF file, as llama.cpp's converter does; uses the standard
library only.

  hf_to_gguf.py MODEL_DIR OUT.gguf [--split N]
  hf_to_gguf.py --families      all of tests/model/golden/gguf (except types.bin and mixed.gguf)

Matrices keep their type; vectors become F32.  Families: llama, mistral, mixtral, qwen2, qwen3,
qwen3_moe, phi, phi3, gemma, gemma3_text, olmo2, olmo3, granite, falcon,
gpt_oss, gemma2, qwen3_5_text, qwen3_5_moe_text, qwen3_next, cohere2, ministral3, glm4_moe, gemma4_text, lfm2,
deepseek_v2, glm4_moe_lite, granitemoehybrid.  A byte-level BPE tokenizer and the chat template are included if the folder has
them."""
import argparse
import json
import math
import os
import pathlib
import struct

ROOT = pathlib.Path(__file__).resolve().parents[2]
U32, I32, F32, BOOL, STRING, ARRAY, U64 = 4, 5, 6, 7, 8, 9, 10
TYPES = {"F32": (0, 4), "F16": (1, 2), "BF16": (30, 2), "MXFP4": (39, 17 / 32)}
ARCHS = {"llama": "llama", "mistral": "llama", "qwen2": "qwen2", "qwen3": "qwen3", "phi": "phi2", "phi3": "phi3",
         "gemma": "gemma", "falcon": "falcon", "mixtral": "llama", "qwen3_moe": "qwen3moe",
         "gemma3_text": "gemma3", "olmo2": "olmo2", "olmo3": "olmo2", "granite": "granite",
         "gpt_oss": "gpt-oss", "gemma2": "gemma2", "qwen3_5_text": "qwen35", "qwen3_5_moe_text": "qwen35moe",
         "qwen3_next": "qwen3next", "cohere2": "cohere2", "ministral3": "mistral3", "glm4_moe": "glm4moe",
         "gemma4_text": "gemma4", "lfm2": "lfm2", "deepseek_v2": "deepseek2", "glm4_moe_lite": "deepseek2",
         "granitemoehybrid": "granitehybrid"}
HYBRIDS = ("qwen35", "qwen35moe", "qwen3next")
GEMMA3 = ("gemma3", "gemma-embedding")
PLUS_ONE = ("gemma", "gemma2", *GEMMA3, *HYBRIDS)
PAIRS = ("llama", "granite", "mistral3", "granitehybrid")  # the rows of a head are interleaved
# Tensors of all experts: matrices of experts 0, 1, ... one behind another.
EXPERTS = {"gate_proj": "ffn_gate_exps", "up_proj": "ffn_up_exps", "down_proj": "ffn_down_exps",
           "w1": "ffn_gate_exps", "w3": "ffn_up_exps", "w2": "ffn_down_exps"}
OUTSIDE = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output",
           "model.final_layernorm": "output_norm", "transformer.word_embeddings": "token_embd",
           "transformer.ln_f": "output_norm", "model.embed_tokens_per_layer": "per_layer_token_embd",
           "model.per_layer_model_projection": "per_layer_model_proj",
           "model.per_layer_projection_norm": "per_layer_proj_norm", "model.embedding_norm": "token_embd_norm"}
INSIDE = {
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "self_attn.dense": "attn_output", "self_attn.qkv_proj": "attn_qkv",
    "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm", "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up", "mlp.gate_up_proj": "ffn_up", "mlp.down_proj": "ffn_down", "mlp.fc1": "ffn_up",
    "mlp.fc2": "ffn_down", "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
    "self_attention.query_key_value": "attn_qkv", "self_attention.dense": "attn_output",
    "mlp.dense_h_to_4h": "ffn_up", "mlp.dense_4h_to_h": "ffn_down", "ln_attn": "attn_norm_2", "ln_mlp": "attn_norm",
    "mlp.router": "ffn_gate_inp", "mlp.gate": "ffn_gate_inp", "block_sparse_moe.gate": "ffn_gate_inp", "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm", "linear_attn.in_proj_qkv": "attn_qkv", "linear_attn.in_proj_z": "attn_gate",
    "linear_attn.in_proj_b": "ssm_beta", "linear_attn.in_proj_a": "ssm_alpha", "linear_attn.in_proj_ba": "ssm_ba",
    "linear_attn.conv1d": "ssm_conv1d", "linear_attn.norm": "ssm_norm", "linear_attn.out_proj": "ssm_out",
    "linear_attn.A_log": "ssm_a", "linear_attn.dt_bias": "ssm_dt", "mlp.shared_expert.gate_proj": "ffn_gate_shexp",
    "mlp.shared_expert.up_proj": "ffn_up_shexp", "mlp.shared_expert.down_proj": "ffn_down_shexp",
    "mlp.shared_expert_gate": "ffn_gate_inp_shexp", "mlp.shared_experts.gate_proj": "ffn_gate_shexp",
    "mlp.shared_experts.up_proj": "ffn_up_shexp", "mlp.shared_experts.down_proj": "ffn_down_shexp",
    "operator_norm": "attn_norm", "self_attn.out_proj": "attn_output", "self_attn.q_layernorm": "attn_q_norm",
    "self_attn.k_layernorm": "attn_k_norm", "feed_forward.w1": "ffn_gate", "feed_forward.w3": "ffn_up", "feed_forward.w2": "ffn_down",
    "self_attn.q_a_proj": "attn_q_a", "self_attn.q_b_proj": "attn_q_b", "self_attn.q_a_layernorm": "attn_q_a_norm",
    "self_attn.kv_a_proj_with_mqa": "attn_kv_a_mqa", "self_attn.kv_a_layernorm": "attn_kv_a_norm",
    "conv.in_proj": "shortconv.in_proj", "conv.conv": "shortconv.conv", "conv.out_proj": "shortconv.out_proj",
    "mamba.in_proj": "ssm_in", "mamba.out_proj": "ssm_out", "mamba.conv1d": "ssm_conv1d", "mamba.norm": "ssm_norm",
    "block_sparse_moe.router.layer": "ffn_gate_inp", "block_sparse_moe.output_linear": "ffn_down_exps"}
GEMMA4 = {"router.proj": "ffn_gate_inp", "pre_feedforward_layernorm_2": "pre_ffw_norm_2",
          "post_feedforward_layernorm_1": "post_ffw_norm_1", "post_feedforward_layernorm_2": "post_ffw_norm_2",
          "per_layer_input_gate": "inp_gate", "per_layer_projection": "proj", "post_per_layer_input_norm": "post_norm"}
BARE = {"layer_scalar": "layer_output_scale.weight", "router.scale": "ffn_gate_inp.scale",
        "router.per_expert_scale": "ffn_down_exps.scale", "experts.gate_up_proj": "ffn_gate_up_exps.weight",
        "experts.down_proj": "ffn_down_exps.weight"}


def text(s):
    raw = s.encode()
    return struct.pack("<Q", len(raw)) + raw


def values(kind, v):
    if kind == STRING:
        return b"".join(map(text, v))
    return struct.pack(f"<{len(v)}" + {U32: "I", I32: "i", F32: "f", BOOL: "B", U64: "Q", 2: "H"}[kind], *v)


def pair(key, kind, v):
    if isinstance(v, list):
        return text(key) + struct.pack("<IIQ", ARRAY, kind, len(v)) + values(kind, v)
    return text(key) + struct.pack("<I", kind) + values(kind, [v])


def read_tensors(folder):
    data = (folder / "model.safetensors").read_bytes()
    n = struct.unpack("<Q", data[:8])[0]
    for name, t in json.loads(data[8 : 8 + n]).items():
        if name != "__metadata__":
            begin, end = (8 + n + o for o in t["data_offsets"])
            yield name, t["dtype"], t["shape"], data[begin:end]


def to_floats(dtype, raw):
    if dtype == "F32":
        return struct.unpack(f"<{len(raw) // 4}f", raw)
    if dtype == "F16":
        return struct.unpack(f"<{len(raw) // 2}e", raw)
    wide = b"".join(b"\0\0" + raw[i : i + 2] for i in range(0, len(raw), 2))
    return struct.unpack(f"<{len(wide) // 4}f", wide)


def rows_in_order(raw, n_rows, order):
    size = len(raw) // n_rows
    return b"".join(raw[r * size : (r + 1) * size] for r in order)


def interleaved(n_rows, d):
    """Reorders the rows of each head from halves to pairs, because the architecture llama rotates
    neighbours.
    """
    return [h + half * (d // 2) + i for h in range(0, n_rows, d) for i in range(d // 2) for half in range(2)]


def stacked(heads, kv_heads, d):
    """Reorders Falcon's q, k, v of each group to all q, all k, all v."""
    per = heads // kv_heads
    rows = lambda first, n: [g * (per + 2) * d + first + i for g in range(kv_heads) for i in range(n)]
    return rows(0, per * d) + rows(per * d, d) + rows((per + 1) * d, d)


def recurrent(layer, inner, dtype, shape, raw, c):
    """Yields what a recurrent layer's tensor becomes.  The heads of V of a head of Q lie together in a folder; in files of
    qwen35 each head of V lies behind that of the head of Q before (the first of each, then the second of each)."""
    n_k, n_v = c["linear_num_key_heads"], c["linear_num_value_heads"]
    d_k, d_v, per = c["linear_key_head_dim"], c["linear_value_head_dim"], n_v // n_k
    out = f"blk.{layer}.{INSIDE.get(inner, '')}"
    channels, first = 2 * n_k * d_k + n_v * d_v, 2 * n_k * d_k
    if inner == "linear_attn.in_proj_qkvz":
        run = 2 * d_k + 2 * per * d_v  # rows of a head of Q: q, k, v, z
        rows = lambda at, n: [h * run + at + i for h in range(n_k) for i in range(n)]
        qkv = rows(0, d_k) + rows(d_k, d_k) + rows(2 * d_k, per * d_v)
        yield f"blk.{layer}.attn_qkv.weight", dtype, [channels, shape[1]], rows_in_order(raw, shape[0], qkv)
        z = rows(2 * d_k + per * d_v, per * d_v)
        yield f"blk.{layer}.attn_gate.weight", dtype, [n_v * d_v, shape[1]], rows_in_order(raw, shape[0], z)
        return
    if c["model_type"] != "qwen3_next":
        tiles = lambda d, at=0: [at + (h * per + i) * d + r for i in range(per) for h in range(n_k) for r in range(d)]
        if inner in ("linear_attn.in_proj_qkv", "linear_attn.conv1d"):
            raw = rows_in_order(raw, channels, [*range(first), *tiles(d_v, first)])
        elif inner == "linear_attn.in_proj_z":
            raw = rows_in_order(raw, n_v * d_v, tiles(d_v))
        elif inner in ("linear_attn.in_proj_b", "linear_attn.in_proj_a", "linear_attn.A_log", "linear_attn.dt_bias"):
            raw = rows_in_order(raw, n_v, tiles(1))
        elif inner == "linear_attn.out_proj":
            size = len(raw) // shape[0]
            raw = b"".join(rows_in_order(raw[r * size : (r + 1) * size], n_v * d_v, tiles(d_v)) for r in range(shape[0]))
    if len(shape) != 2:
        numbers = to_floats(dtype, raw)
        if inner == "linear_attn.A_log":
            numbers = [-math.exp(x) for x in numbers]
        dtype, raw = "F32", struct.pack(f"<{len(numbers)}f", *numbers)
    if inner == "linear_attn.conv1d":
        shape = [channels, shape[2]]
    yield out + {"A_log": "", "dt_bias": ".bias"}.get(inner.split(".")[1], ".weight"), dtype, shape, raw


def latent(layer, dtype, shape, raw, c):
    """Yields W_k of each head, transposed, and W_v, from the tensor that has both for each head."""
    heads, rank, n_k, n_v = c["num_attention_heads"], shape[1], c["qk_nope_head_dim"], c["v_head_dim"]
    size, row = TYPES[dtype][1], rank * TYPES[dtype][1]
    each = [raw[h * (n_k + n_v) * row : (h + 1) * (n_k + n_v) * row] for h in range(heads)]
    k = [b[i * row + r * size : i * row + (r + 1) * size] for b in each for r in range(rank) for i in range(n_k)]
    yield f"blk.{layer}.attn_k_b.weight", dtype, [heads, rank, n_k], b"".join(k)
    yield f"blk.{layer}.attn_v_b.weight", dtype, [heads, n_v, rank], b"".join(b[n_k * row :] for b in each)


def granite_hybrid(layer, inner, dtype, shape, raw, c):
    """Yields what a tensor of Mamba-2 or of an MLP becomes: gate and up are cut, vectors are matrices."""
    size, groups = TYPES[dtype][1], c["mamba_n_groups"]
    if inner.endswith("_linear.weight"):
        end = "" if not c["num_local_experts"] else "_exps" if "sparse" in inner else "_shexp"
        names = ["gate", "up"] if "input_linear" in inner else ["down"]
        n, rows, width = (shape[0] if end == "_exps" else 1), shape[-2] // len(names), shape[-1]
        for i, name in enumerate(names):
            run = rows * width * size
            mine = b"".join(raw[(e * len(names) + i) * run :][:run] for e in range(n))
            yield f"blk.{layer}.ffn_{name}{end}.weight", dtype, [*shape[:-2], rows, width], mine
        return
    numbers = to_floats(dtype, raw)
    if inner == "mamba.A_log":
        numbers = [-math.exp(x) for x in numbers]
    raw = struct.pack(f"<{len(numbers)}f", *numbers)
    out, shape = {"mamba.A_log": ("ssm_a", [shape[0], 1]), "mamba.D": ("ssm_d", [shape[0], 1]),
                  "mamba.dt_bias": ("ssm_dt.bias", shape), "mamba.conv1d.bias": ("ssm_conv1d.bias", shape),
                  "mamba.conv1d.weight": ("ssm_conv1d.weight", [shape[0], shape[-1]]),
                  "mamba.norm.weight": ("ssm_norm.weight", [groups, shape[0] // groups])}[inner]
    yield f"blk.{layer}.{out}", "F32", shape, raw


def guessing(layer, tensors, n_embd):
    """Yields the tensors of a layer that guesses tokens: those of a layer of attention, and its own."""
    last = max(int(name.split(".")[1]) for name, *_ in tensors if ".attn_q." in name)
    for name, dtype, shape, raw in tensors:
        if name.startswith(f"blk.{last}."):
            yield f"blk.{layer}." + name.split(".", 2)[2], dtype, shape, raw
    yield f"blk.{layer}.nextn.eh_proj.weight", "F32", [n_embd, 2 * n_embd], bytes(8 * n_embd * n_embd)
    for name in ("enorm", "hnorm", "shared_head_norm"):
        yield f"blk.{layer}.nextn.{name}.weight", "F32", [n_embd], bytes(4 * n_embd)


def f32(x):
    return struct.unpack("<f", struct.pack("<f", x))[0]


def rope_factors(rope, d):
    """Returns the factors that llama.cpp's converter computes from Llama 3.1's scaling. Like it, rounds
    every step to f32, and divides by multiplying with the reciprocal."""
    factors = []
    lo, hi, f = rope["low_freq_factor"], rope["high_freq_factor"], rope["factor"]
    old = rope["original_max_position_embeddings"]
    for i in range(d // 2):
        freq = f32(1 / f32(f32(rope["rope_theta"]) ** f32(2 * i / d)))
        wave = f32(f32(1 / freq) * f32(2 * math.pi))
        smooth = f32(f32(f32(f32(1 / wave) * old) - lo) / (hi - lo))
        blend = f32(1 / f32(f32(f32(1 - smooth) / f) + smooth))
        factors.append(1.0 if wave < old / hi else f if wave > old / lo else blend)
    return factors


def gemma4(c):
    """Returns the entries of a gemma4 that differ from layer to layer: heads, their width, and MLPs."""
    local = [kind == "sliding_attention" for kind in c["layer_types"]]
    full = {"head_dim": c["head_dim"], "num_key_value_heads": c["num_key_value_heads"],
            **next(iter(c["per_layer_config"].values()))}
    first = c["num_hidden_layers"] - c["num_kv_shared_layers"]
    wide = [2 if c["use_double_wide_mlp"] and i >= first else 1 for i in range(len(local))]
    return {"d": full["head_dim"], "kv": [c["num_key_value_heads"] if l else full["num_key_value_heads"] for l in local],
            "ffn": [c["intermediate_size"] * w for w in wide], "local": local}


def metadata(c, arch, vocab_rows, n_guessing):
    heads = c["num_attention_heads"]
    kv = c.get("num_key_value_heads") or c.get("num_kv_heads") or heads
    if c["model_type"] == "falcon" and not c.get("new_decoder_architecture"):
        kv = 1 if c.get("multi_query") else heads
    d = c.get("head_dim") or c["hidden_size"] // heads
    rope = c.get("rope_parameters") or {}
    rope = {"rope_theta": c.get("rope_theta", 10000.0), **rope.get("full_attention", rope)}
    norm = "attention.layer_norm_epsilon" if arch in ("phi2", "falcon", "cohere2") else "attention.layer_norm_rms_epsilon"
    eps = c.get("rms_norm_eps", c.get("layer_norm_eps", c.get("layer_norm_epsilon", c.get("norm_eps", 1e-6))))
    yield "block_count", U32, c["num_hidden_layers"] + n_guessing
    yield "context_length", U32, c["max_position_embeddings"]
    yield "embedding_length", U32, c["hidden_size"]
    n_ffn = c.get("intermediate_size", c.get("ffn_hidden_size"))
    if arch == "lfm2":
        unit = c["block_multiple_of"]
        n_ffn = -(-(2 * n_ffn // 3) // unit) * unit if c["block_auto_adjust_ff_dim"] else n_ffn
        kv = [kv if kind == "full_attention" else 0 for kind in c["layer_types"]]
        yield "shortconv.l_cache", U32, c["conv_L_cache"]
    if arch == "gemma4":
        own = gemma4(c)
        d, kv, n_ffn, rope = own["d"], own["kv"], own["ffn"], {**rope, "partial_rotary_factor": 1.0}
        yield "attention.key_length_swa", U32, c["head_dim"]
        yield "attention.value_length_swa", U32, c["head_dim"]
        yield "rope.dimension_count_swa", U32, c["head_dim"]
        yield "rope.freq_base_swa", F32, c["rope_parameters"]["sliding_attention"]["rope_theta"]
        yield "attention.sliding_window_pattern", BOOL, own["local"]
        yield "attention.shared_kv_layers", U32, c["num_kv_shared_layers"]
        yield "embedding_length_per_layer_input", U32, c["hidden_size_per_layer_input"]
        if c["final_logit_softcapping"]:
            yield "final_logit_softcapping", F32, c["final_logit_softcapping"]
    if arch == "deepseek2":
        kv, d, of_rope = 1, c["kv_lora_rank"] + c["qk_rope_head_dim"], c["qk_rope_head_dim"]
        yield "attention.kv_lora_rank", U32, c["kv_lora_rank"]
        if c["q_lora_rank"]:
            yield "attention.q_lora_rank", U32, c["q_lora_rank"]
        yield "attention.key_length", U32, d
        yield "attention.value_length", U32, c["kv_lora_rank"]
        yield "attention.key_length_mla", U32, c["qk_nope_head_dim"] + of_rope
        yield "attention.value_length_mla", U32, c["v_head_dim"]
        if rope.get("mscale_all_dim"):
            yield "rope.scaling.yarn_log_multiplier", F32, 0.1 * rope["mscale_all_dim"]
    if arch == "granitehybrid":
        kv = [kv if kind == "full_attention" else 0 for kind in c["layer_types"]]
        n_ffn = n_ffn if c["num_local_experts"] else c["shared_intermediate_size"]
        yield "ssm.conv_kernel", U32, c["mamba_d_conv"]
        yield "ssm.state_size", U32, c["mamba_d_state"]
        yield "ssm.group_count", U32, c["mamba_n_groups"]
        yield "ssm.time_step_rank", U32, c["mamba_n_heads"]
        yield "ssm.inner_size", U32, c["mamba_n_heads"] * c["mamba_d_head"]
        yield "rope.scaling.finetuned", BOOL, int(c["position_embedding_type"] == "rope")
        yield "expert_shared_feed_forward_length", U32, c["shared_intermediate_size"]
    yield "feed_forward_length", U32, n_ffn
    yield "attention.head_count", U32, heads
    yield "attention.head_count_kv", U32, kv
    yield norm, F32, eps
    yield "rope.freq_base", F32, rope["rope_theta"]
    yield "rope.dimension_count", U32, of_rope if arch == "deepseek2" else int(d * rope.get("partial_rotary_factor", 1.0))
    yield "vocab_size", U32, vocab_rows
    if arch != "deepseek2" and (d * heads != c["hidden_size"] or "head_dim" in c):
        yield "attention.key_length", U32, d
        yield "attention.value_length", U32, d
    if c.get("sliding_window") and arch in ("phi3", "llama", *GEMMA3, "olmo2", "gpt-oss", "gemma2", "cohere2", "gemma4"):
        yield "attention.sliding_window", U32, c["sliding_window"]
    if rope.get("rope_type") == "linear":
        yield "rope.scaling.type", STRING, "linear"
        yield "rope.scaling.factor", F32, rope["factor"]
    if rope.get("rope_type") == "yarn":
        yield "rope.scaling.type", STRING, "yarn"
        yield "rope.scaling.factor", F32, rope["factor"]
        yield "rope.scaling.original_context_length", U32, rope["original_max_position_embeddings"]
        if "beta_fast" in rope:
            yield "rope.scaling.yarn_beta_fast", F32, rope["beta_fast"]
        if arch == "mistral3":
            yield "rope.scaling.yarn_beta_slow", F32, rope["beta_slow"]
            yield "rope.scaling.yarn_log_multiplier", F32, rope["mscale_all_dim"]
            yield "attention.temperature_scale", F32, rope["llama_4_scaling_beta"]
    if rope.get("rope_type") == "longrope":
        old = rope["original_max_position_embeddings"]
        factor = c["max_position_embeddings"] / old
        yield "rope.scaling.original_context_length", U32, old
        yield "rope.scaling.attn_factor", F32, math.sqrt(1 + math.log(factor) / math.log(old)) if factor > 1 else 1.0
    if arch == "cohere2":
        yield "logit_scale", F32, c["logit_scale"]
        yield "rope.scaling.type", STRING, "none"
    if c["model_type"] in ("olmo3", "cohere2"):
        yield "attention.sliding_window_pattern", BOOL, [kind == "sliding_attention" for kind in c["layer_types"]]
    if arch in GEMMA3:
        yield "attention.sliding_window_pattern", BOOL, [kind == "sliding_attention" for kind in c["layer_types"]]
        yield "rope.freq_base_swa", F32, c["rope_parameters"]["sliding_attention"]["rope_theta"]
    if arch in ("granite", "granitehybrid"):
        yield "embedding_scale", F32, c["embedding_multiplier"]
        yield "residual_scale", F32, c["residual_multiplier"]
        yield "attention.scale", F32, c["attention_multiplier"]
        yield "logit_scale", F32, c["logits_scaling"]
    experts = c.get("num_local_experts", c.get("num_experts"))
    if experts:
        yield "expert_count", U32, experts
        yield "expert_used_count", U32, c.get("num_experts_per_tok", c.get("top_k_experts"))
    if arch == "gemma2":
        yield "attn_logit_softcapping", F32, c["attn_logit_softcapping"]
        yield "final_logit_softcapping", F32, c["final_logit_softcapping"]
    if arch == "gpt-oss":
        yield "expert_feed_forward_length", U32, c["intermediate_size"]
    if arch in HYBRIDS:
        yield "ssm.conv_kernel", U32, c["linear_conv_kernel_dim"]
        yield "ssm.state_size", U32, c["linear_key_head_dim"]
        yield "ssm.group_count", U32, c["linear_num_key_heads"]
        yield "ssm.time_step_rank", U32, c["linear_num_value_heads"]
        yield "ssm.inner_size", U32, c["linear_num_value_heads"] * c["linear_value_head_dim"]
        yield "full_attention_interval", U32, c.get("full_attention_interval", 4)
        yield "attention.recurrent_layers", BOOL, [k == "linear_attention" for k in c["layer_types"]] + [False] * n_guessing
        if arch != "qwen3next":
            yield "rope.dimension_sections", I32, (rope.get("mrope_section", [11, 11, 10]) + [0])[:4]
        if n_guessing:
            yield "nextn_predict_layers", U32, n_guessing
        if experts:
            yield "expert_shared_feed_forward_length", U32, c["shared_expert_intermediate_size"]
    if arch in ("glm4moe", "deepseek2"):
        sigmoid = c["model_type"] != "deepseek_v2"
        yield "leading_dense_block_count", U32, c.get("first_k_dense_replace", c.get("mlp_layer_types", []).count("dense"))
        yield "expert_count", U32, c["n_routed_experts"]
        yield "expert_used_count", U32, c["num_experts_per_tok"]
        yield "expert_shared_count", U32, c["n_shared_experts"]
        yield "expert_weights_scale", F32, c["routed_scaling_factor"]
        if c["norm_topk_prob"] or sigmoid:
            yield "expert_weights_norm", BOOL, int(c["norm_topk_prob"])
        yield "expert_gating_func", U32, 2 if sigmoid else 1
        if c.get("n_group"):
            yield "expert_group_count", U32, c["n_group"]
            yield "expert_group_used_count", U32, c["topk_group"]
        if n_guessing:
            yield "nextn_predict_layers", U32, n_guessing
    if arch in ("qwen3moe", "qwen35moe", "qwen3next", "glm4moe", "deepseek2") or (arch == "gemma4" and experts):
        yield "expert_feed_forward_length", U32, c["moe_intermediate_size"]


def tokenizer_pairs(folder, n_rows, pre):
    t = json.load(open(folder / "tokenizer.json", encoding="utf-8"))
    names = json.load(open(folder / "tokenizer_config.json", encoding="utf-8"))
    tokens, types = [f"[PAD{i}]" for i in range(n_rows)], [5] * n_rows
    for s, i in t["model"]["vocab"].items():
        tokens[i], types[i] = s, 1
    for a in t["added_tokens"]:
        tokens[a["id"]], types[a["id"]] = a["content"], 3 if a["special"] else 4
    yield "tokenizer.ggml.model", STRING, "gpt2"
    yield "tokenizer.ggml.pre", STRING, pre
    yield "tokenizer.ggml.tokens", STRING, tokens
    yield "tokenizer.ggml.token_type", I32, types
    yield "tokenizer.ggml.merges", STRING, [m if isinstance(m, str) else " ".join(m) for m in t["model"]["merges"]]
    for name in ("bos", "eos"):
        token = names.get(f"{name}_token")
        token = token["content"] if isinstance(token, dict) else token
        if token:
            yield f"tokenizer.ggml.{name}_token_id", U32, tokens.index(token)
    post = json.dumps(t.get("post_processor") or "")
    yield "tokenizer.ggml.add_bos_token", BOOL, int("SpecialToken" in post)
    if names.get("eos_token") and f'"{names["eos_token"]}"' in post:
        yield "tokenizer.ggml.add_eos_token", BOOL, 1
    if names.get("chat_template"):
        yield "tokenizer.chat_template", STRING, names["chat_template"]


def fused_experts(layer, inner, dtype, shape, raw, blocks):
    """Yields the tensors that a fused one of gpt_oss becomes: gate and up alternate in it, matrices are
    [experts][columns][rows] or blocks of MXFP4."""
    kind = inner.removeprefix("mlp.experts.")
    names = [("ffn_down_exps", 0, 1)] if kind.startswith("down") else [("ffn_gate_exps", 0, 2), ("ffn_up_exps", 1, 2)]
    for out, first, step in names:
        if kind.endswith("_bias"):
            numbers = to_floats(dtype, raw)[first::step]
            yield f"blk.{layer}.{out}.bias", "F32", [shape[0], shape[1] // step], struct.pack(f"<{len(numbers)}f", *numbers)
        elif kind.endswith("_scales"):
            n, rows, per_row = shape[0], shape[1] // step, shape[2]
            packed = []
            for r in range(first, n * shape[1], step):
                for b in range(r * per_row, (r + 1) * per_row):
                    q = [x >> s & 15 for x in blocks[16 * b : 16 * b + 16] for s in (0, 4)]
                    packed.append(raw[b : b + 1] + bytes(q[i] | q[i + 16] << 4 for i in range(16)))
            yield f"blk.{layer}.{out}.weight", "MXFP4", [n, rows, 32 * per_row], b"".join(packed)
        elif not kind.endswith("_blocks"):
            n, cols, rows = shape
            size = TYPES[dtype][1]
            at = [((e * cols + k) * rows + r) * size for e in range(n) for r in range(first, rows, step) for k in range(cols)]
            yield (f"blk.{layer}.{out}.weight", dtype, [n, rows // step, cols],
                   b"".join(raw[i : i + size] for i in at))


def converted(folder, c, arch):
    heads = c["num_attention_heads"]
    kv = c.get("num_key_value_heads") or c.get("num_kv_heads") or heads
    if c["model_type"] == "falcon" and not c.get("new_decoder_architecture"):
        kv = 1 if c.get("multi_query") else heads
    d = c.get("head_dim") or c["hidden_size"] // heads
    rope = c.get("rope_parameters") or c.get("rope_scaling") or {}
    if rope.get("rope_type") == "llama3":
        factors = rope_factors({"rope_theta": c.get("rope_theta", 10000.0), **rope}, d)
        yield "rope_freqs.weight", "F32", [d // 2], struct.pack(f"<{d // 2}f", *factors)
    if arch == "gemma4":
        half = gemma4(c)["d"] // 2
        n = int(half * rope["full_attention"]["partial_rotary_factor"])
        yield "rope_freqs.weight", "F32", [half], struct.pack(f"<{half}f", *([1.0] * n + [1e30] * (half - n)))
    experts = {}  # of a stacked tensor: type and shape of one expert's matrix, and bytes by number
    if rope.get("rope_type") == "longrope":
        for kind in ("long", "short"):
            factors = rope[f"{kind}_factor"]
            yield f"rope_factors_{kind}.weight", "F32", [len(factors)], struct.pack(f"<{len(factors)}f", *factors)
    blocks = {n: raw for n, _, _, raw in read_tensors(folder) if n.endswith("_blocks")}
    for name, dtype, shape, raw in read_tensors(folder):
        if arch == "gpt-oss" and ".mlp.experts." in name:
            layer, inner = name.removeprefix("model.layers.").split(".", 1)
            yield from fused_experts(layer, inner, dtype, shape, raw, blocks.get(name.replace("_scales", "_blocks")))
            continue
        if ".linear_attn." in name:
            layer, inner = name.removeprefix("model.layers.").removesuffix(".weight").split(".", 1)
            if inner != "linear_attn.norm":
                yield from recurrent(layer, inner, dtype, shape, raw, c)
                continue
        if name.endswith(".kv_b_proj.weight"):
            yield from latent(name.split(".")[2], dtype, shape, raw, c)
            continue
        if "_linear.weight" in name or (".mamba." in name and "_proj" not in name):
            yield from granite_hybrid(*name.removeprefix("model.layers.").split(".", 1), dtype, shape, raw, c)
            continue
        if name.endswith(".e_score_correction_bias"):
            name = name.replace("mlp.gate.e_score_correction_bias", "exp_probs_b.bias")
        if name.endswith("self_attn.sinks"):
            name = name.replace("self_attn.sinks", "attn_sinks.weight")
        if c["architectures"][0] == "Gemma3TextModel":
            name = "model." + name  # the bare base model
        bare = BARE.get(name.removeprefix("model.layers.").split(".", 1)[-1]) if arch == "gemma4" else None
        if bare:
            name = f"model.layers.{name.split('.')[2]}.{bare}"
        stem, end = name.rsplit(".", 1)
        if stem == "lm_head" and c.get("tie_word_embeddings", c["model_type"] in ("gemma", "gemma2", "gemma3_text", "falcon", "cohere2", "gemma4_text")):
            continue
        if stem in OUTSIDE:
            out = f"{OUTSIDE[stem]}.{end}"
        else:
            layer, inner = stem.removeprefix("model.layers.").removeprefix("transformer.h.").split(".", 1)
            if ".experts." in inner:
                number, kind = inner.split(".experts.")[1].split(".")
                all_of_it = experts.setdefault(f"blk.{layer}.{EXPERTS[kind]}.{end}", (dtype, shape, {}))
                all_of_it[2][int(number)] = raw
                continue
            around = c["model_type"] in ("gemma2", "gemma3_text", "olmo2", "olmo3", "gpt_oss", "glm4_moe", "qwen3_5_text", "qwen3_5_moe_text", "qwen3_next", "gemma4_text")  # the norm that follows attention
            after = around and inner == "post_attention_layernorm"
            out = f"blk.{layer}.{'post_attention_norm' if after else {**INSIDE, **GEMMA4}.get(inner, inner)}.{end}"
        if arch in PAIRS and (".attn_q." in out or ".attn_k." in out):
            raw = rows_in_order(raw, shape[0], interleaved(shape[0], d))
        if arch == "falcon" and ".attn_qkv." in out:
            raw = rows_in_order(raw, shape[0], stacked(heads, kv, d))
        if len(shape) == 1:
            plus = 1.0 if arch in PLUS_ONE and out.endswith("norm.weight") and "ssm_norm" not in out else 0.0
            floats = [struct.unpack("<f", struct.pack("<f", x + plus))[0] for x in to_floats(dtype, raw)]
            dtype, raw = "F32", struct.pack(f"<{len(floats)}f", *floats)
        if out.endswith("shortconv.conv.weight"):
            shape = [shape[0], shape[2]]
        if "ffn_gate_inp" in out or "shortconv.conv" in out:
            floats = to_floats(dtype, raw)
            dtype, raw = "F32", struct.pack(f"<{len(floats)}f", *floats)
        yield out, dtype, shape, raw
    for out, (dtype, shape, raws) in experts.items():
        yield out, dtype, [len(raws), *shape], b"".join(raws[i] for i in range(len(raws)))


def embedding(folder):
    """Returns the pairs and the tensors of a model's pooling and of the linear layers behind it."""
    pairs, tensors = [], []
    modules = json.load(open(folder / "modules.json")) if (folder / "modules.json").exists() else []
    for m in modules:
        c = json.load(open(folder / m["path"] / "config.json")) if m["type"].endswith(("Pooling", "Dense")) else {}
        if m["type"].endswith("Pooling"):
            kinds = ("mean_tokens", "cls_token", "lasttoken")
            pairs.append(("pooling_type", U32, [bool(c.get(f"pooling_mode_{k}")) for k in kinds].index(True) + 1))
        if m["type"].endswith("Dense"):
            name = f"dense_{len(tensors) + 2}"
            pairs += [(f"{name}_feat_in", U32, c["in_features"]), (f"{name}_feat_out", U32, c["out_features"])]
            tensors += [(f"{name}.weight", *t[1:]) for t in read_tensors(folder / m["path"])]
    return pairs, tensors


def write(path, pairs, tensors):
    head = struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), len(pairs)) + b"".join(pairs)
    at, data = 0, []
    for name, dtype, shape, raw in tensors:
        head += text(name) + struct.pack("<I", len(shape)) + b"".join(struct.pack("<Q", n) for n in reversed(shape))
        head += struct.pack("<IQ", TYPES[dtype][0], at)
        padded = raw + b"\0" * (-len(raw) % 32)
        data.append(padded)
        at += len(padded)
    head += b"\0" * (-len(head) % 32)
    path.write_bytes(head + b"".join(data))


def convert(folder, out, split=1, pre="gpt-2", change=(), n_guessing=0):
    """Writes the file, with n_guessing layers that guess tokens behind the model's own. `change` is an entry of metadata (key, kind, value) that replaces the
    folder's; a value of None leaves the key out."""
    folder, out = pathlib.Path(folder), pathlib.Path(out)
    c = json.load(open(folder / "config.json", encoding="utf-8"))
    arch = "gemma-embedding" if c.get("use_bidirectional_attention") else ARCHS[c["model_type"]]
    of_embedding, behind = embedding(folder)
    tensors = list(converted(folder, c, arch)) + behind
    for i in range(0 if arch == "glm4moe" else n_guessing):  # glm4_moe's folder has their tensors
        tensors += list(guessing(c["num_hidden_layers"] + i, tensors, c["hidden_size"]))
    rows = next(t[2][0] for t in tensors if t[0] == "token_embd.weight")
    all_pairs = {"general.architecture": (STRING, arch), "general.name": (STRING, folder.name)}
    all_pairs.update({f"{arch}.{k}": (kind, v) for k, kind, v in [*metadata(c, arch, rows, n_guessing), *of_embedding]})
    if (folder / "tokenizer.json").exists():
        all_pairs.update({k: (kind, v) for k, kind, v in tokenizer_pairs(folder, rows, pre)})
    else:
        all_pairs["tokenizer.ggml.model"] = (STRING, "no_vocab")
        for name in ("bos", "eos"):
            i = c.get(f"{name}_token_id")
            i = i[0] if isinstance(i, list) else i
            if i is not None:
                all_pairs[f"tokenizer.ggml.{name}_token_id"] = (U32, i)
    all_pairs.update({k: (kind, v) for k, kind, v in change})
    pairs = [pair(k, kind, v) for k, (kind, v) in all_pairs.items() if v is not None]
    if split == 1:
        write(out, pairs, tensors)
        return
    per = -(-len(tensors) // split)
    for i in range(split):
        numbers = [pair("split.no", 2, i), pair("split.count", 2, split), pair("split.tensors.count", I32, len(tensors))]
        part = out.with_name(f"{out.name.removesuffix('.gguf')}-{i + 1:05}-of-{split:05}.gguf")
        write(part, (pairs if i == 0 else []) + numbers, tensors[i * per : (i + 1) * per])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model", nargs="?")
    parser.add_argument("out", nargs="?")
    parser.add_argument("--split", type=int, default=1)
    parser.add_argument("--pre", default="gpt-2")
    parser.add_argument("--families", action="store_true")
    a = parser.parse_args()
    if a.families:
        golden = ROOT / "tests" / "model" / "golden"
        os.makedirs(golden / "gguf", exist_ok=True)
        for name in ("llama", "llama3", "mistral", "qwen2", "qwen3", "phi", "phi3", "gemma", "falcon-7b", "falcon-11b",
                     "falcon-40b", "qwen3-moe", "mixtral", "gemma3", "olmo2", "granite", "qwen3-yarn", "phi3-long", "phi3-short", "olmo3",
                     "gpt-oss", "gpt-oss-mxfp4", "gemma2", "qwen3.5", "qwen3.5-moe", "qwen3-next", "cohere2", "ministral3",
                     "glm4-moe", "glm4-moe-groups", "gemma4", "gemma4-layers", "gemma4-moe", "lfm2", "lfm2-untied",
                     "deepseek-v2", "glm4-lite", "granite-h", "granite-h-dense"):
            convert(golden / "families" / name, golden / "gguf" / f"{name}.gguf", n_guessing=int(name in ("qwen3.5", "glm4-moe")))
        convert(golden / "families" / "llama3", golden / "gguf" / "split.gguf", split=3)
    else:
        convert(a.model, a.out, a.split, a.pre)
