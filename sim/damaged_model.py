"""Makes bad model files out of good ones: damaged_model.py KIND DIR

Each kind is damage that a download, a disk or a converter does to a checkpoint."""
import json
import os
import struct
import sys

kind, folder = sys.argv[1:3]
weights = os.path.join(folder, "model.safetensors")
config = os.path.join(folder, "config.json")


def read(path):
    with open(path, "rb") as f:
        return f.read()


def write(path, data):
    with open(path, "wb") as f:
        f.write(data)


def header_of(data):
    n = struct.unpack("<Q", data[:8])[0]
    return json.loads(data[8:8 + n]), data[8 + n:]


def rebuild(header, rest):
    text = json.dumps(header).encode()
    write(weights, struct.pack("<Q", len(text)) + text + rest)


def edit_config(**changes):
    c = json.loads(read(config))
    c.update(changes)
    write(config, json.dumps(c).encode())


data = read(weights)
header, rest = header_of(data)
names = sorted(n for n in header if n != "__metadata__")
first = header[names[0]]
if kind == "missing":
    os.remove(weights)
elif kind == "no_config":
    os.remove(config)
elif kind == "empty":
    write(weights, b"")
elif kind == "truncated":
    write(weights, data[:len(data) // 2])
elif kind == "one_byte_short":
    write(weights, data[:-1])
elif kind == "header_longer_than_file":
    write(weights, struct.pack("<Q", 1 << 40) + data[8:])
elif kind == "header_wraps":
    write(weights, struct.pack("<Q", (1 << 64) - 4) + data[8:])
elif kind == "header_no_json":
    write(weights, data[:8] + b"#" + data[9:])
elif kind == "offsets_overlap":
    second = header[names[1]]
    size = second["data_offsets"][1] - second["data_offsets"][0]
    begin = first["data_offsets"][0]
    second["data_offsets"] = [begin, begin + size]
    rebuild(header, rest)
elif kind == "offsets_beyond_file":
    size = first["data_offsets"][1] - first["data_offsets"][0]
    first["data_offsets"] = [len(rest), len(rest) + size]
    rebuild(header, rest)
elif kind == "offsets_backwards":
    first["data_offsets"].reverse()
    rebuild(header, rest)
elif kind == "unknown_dtype":
    first["dtype"] = "Q17"
    rebuild(header, rest)
elif kind == "tensor_missing":
    name = next(n for n in names if "q_proj" in n)
    header[name.replace("q_proj", "q_lost")] = header.pop(name)
    rebuild(header, rest)
elif kind == "wrong_shape":
    name = next(n for n in names if "q_proj" in n)
    header[name]["shape"].reverse()
    header[name]["shape"][0] *= 2
    header[name]["shape"][1] //= 2
    rebuild(header, rest)
elif kind == "unknown_architecture":
    edit_config(model_type="quokka", architectures=["QuokkaForCausalLM"])
elif kind == "config_no_json":
    write(config, read(config)[:-20])
elif kind == "config_negative":
    edit_config(num_hidden_layers=-3)
elif kind == "config_huge":
    edit_config(hidden_size=1 << 30, intermediate_size=1 << 30)
elif kind == "context_huge":
    edit_config(max_position_embeddings=1 << 30)
elif kind in ("weights_nan", "row_nan"):
    name = next(n for n in names if n.endswith("norm.weight" if kind == "weights_nan" else "embed_tokens.weight")
                and "layers" not in n)
    begin, end = header[name]["data_offsets"]
    # the last token's row of the embedding table: no prompt of these tests contains this token
    if kind == "row_nan":
        begin = end - (end - begin) // header[name]["shape"][0]
    nan = {"F32": b"\0\0\xc0\x7f", "BF16": b"\xc0\x7f", "F16": b"\0\x7e"}[header[name]["dtype"]]
    rebuild(header, rest[:begin] + nan * ((end - begin) // len(nan)) + rest[end:])
elif kind == "heads_do_not_divide":
    edit_config(num_key_value_heads=3)
elif kind == "tokenizer_too_big":
    path = os.path.join(folder, "tokenizer.json")
    t = json.loads(read(path))
    t["model"]["vocab"]["zzzzz"] = 100000
    write(path, json.dumps(t).encode())
elif kind == "tokenizer_no_json":
    path = os.path.join(folder, "tokenizer.json")
    write(path, read(path)[:1000])
else:
    sys.exit(f"unknown kind {kind}")
