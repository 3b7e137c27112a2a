"""Writes a checkpoint of the llama family (config.json, model.safetensors) as GGUF, as llama.cpp
reads it.

  to_gguf.py MODEL_DIR OUT.gguf [--dtype bf16|f32] [--vocabulary]

With --vocabulary it also writes the byte-level BPE of tokenizer.json, which llama-server needs,
with Llama 3's pattern for splitting, and a chat template that renders what `hcache serve
--plain-chat` does.  Without it, token ids are fed to both programs."""
import argparse
import json
import struct

import gguf
import numpy as np

parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
parser.add_argument("model")
parser.add_argument("out")
parser.add_argument("--dtype", choices=("bf16", "f32"), default="bf16", help="type of the matrices")
parser.add_argument("--vocabulary", action="store_true", help="write the tokenizer, too")
args = parser.parse_args()

config = json.load(open(f"{args.model}/config.json", encoding="utf-8"))
if config["model_type"] != "llama":
    raise SystemExit(f"{args.model}: model_type is {config['model_type']}; only llama is converted here")


def tensors(path):
    """Yields the name and the values (f32) of every tensor of a safetensors file."""
    data = np.memmap(path, dtype=np.uint8, mode="r")
    n = struct.unpack("<Q", data[:8])[0]
    for name, t in json.loads(bytes(data[8 : 8 + n])).items():
        if name == "__metadata__":
            continue
        begin, end = (8 + n + o for o in t["data_offsets"])
        raw = data[begin:end]
        if t["dtype"] == "BF16":
            values = (raw.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
        else:
            values = raw.view({"F32": np.float32, "F16": np.float16}[t["dtype"]]).astype(np.float32)
        yield name, values.reshape(t["shape"])


def interleave(w, heads):
    """Reorders the rows of each head from halves (x1.. x2..) to pairs, because llama.cpp rotates
    neighbours."""
    rows = w.shape[0]
    return w.reshape(heads, 2, rows // heads // 2, *w.shape[1:]).swapaxes(1, 2).reshape(w.shape)


PLAIN_CHAT = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"


def add_vocabulary(w, folder, size):
    t = json.load(open(f"{folder}/tokenizer.json", encoding="utf-8"))
    if t["model"]["type"] != "BPE":
        raise SystemExit(f"{folder}: the tokenizer is {t['model']['type']}; only BPE is converted here")
    tokens = [f"[unused {i}]" for i in range(size)]
    types = [gguf.TokenType.UNUSED] * size
    for text, i in t["model"]["vocab"].items():
        tokens[i], types[i] = text, gguf.TokenType.NORMAL
    ids = {}
    for a in t["added_tokens"]:
        tokens[a["id"]], types[a["id"]] = a["content"], gguf.TokenType.CONTROL
        ids[a["content"]] = a["id"]
    names = json.load(open(f"{folder}/tokenizer_config.json", encoding="utf-8"))
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre("llama-bpe")
    w.add_token_list(tokens)
    w.add_token_types(types)
    w.add_token_merges([m if isinstance(m, str) else " ".join(m) for m in t["model"]["merges"]])
    w.add_bos_token_id(ids[names["bos_token"]])
    w.add_eos_token_id(ids[names["eos_token"]])
    w.add_chat_template(PLAIN_CHAT)


NAMES = {
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
}
OUTSIDE = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight",
           "lm_head.weight": "output.weight"}
heads = config["num_attention_heads"]
kv_heads = config.get("num_key_value_heads", heads)
d_head = config.get("head_dim") or config["hidden_size"] // heads

w = gguf.GGUFWriter(args.out, "llama")
w.add_block_count(config["num_hidden_layers"])
w.add_context_length(config["max_position_embeddings"])
w.add_embedding_length(config["hidden_size"])
w.add_feed_forward_length(config["intermediate_size"])
w.add_head_count(heads)
w.add_head_count_kv(kv_heads)
w.add_rope_dimension_count(d_head)
w.add_key_length(d_head)
w.add_value_length(d_head)
w.add_rope_freq_base(config.get("rope_theta", 10000.0))
w.add_layer_norm_rms_eps(config["rms_norm_eps"])
w.add_vocab_size(config["vocab_size"])
if args.vocabulary:
    add_vocabulary(w, args.model, config["vocab_size"])
else:
    w.add_tokenizer_model("no_vocab")
w.add_file_type(gguf.LlamaFileType.MOSTLY_BF16 if args.dtype == "bf16" else gguf.LlamaFileType.ALL_F32)

for name, values in tensors(f"{args.model}/model.safetensors"):
    if name == "lm_head.weight" and config.get("tie_word_embeddings"):
        continue
    if name in OUTSIDE:
        out = OUTSIDE[name]
    else:
        layer, rest = name.removeprefix("model.layers.").split(".", 1)
        out = f"blk.{layer}.{NAMES[rest.removesuffix('.weight')]}.weight"
        if "q_proj" in name or "k_proj" in name:
            values = interleave(values, heads if "q_proj" in name else kv_heads)
    if values.ndim == 2 and args.dtype == "bf16":
        kind = gguf.GGMLQuantizationType.BF16
        w.add_tensor(out, gguf.quants.quantize(np.ascontiguousarray(values), kind), raw_dtype=kind)
    else:
        w.add_tensor(out, np.ascontiguousarray(values, dtype=np.float32))
w.write_header_to_file()
w.write_kv_data_to_file()
w.write_tensors_to_file()
w.close()
