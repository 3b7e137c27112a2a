"""A model of random weights with recurrent layers, and with the tokenizer and the chat template of models/demo.

`python3 hybrid_model.py DIR [FAMILY]` writes it into DIR."""
import json
import math
import os
import random
import shutil
import struct
import sys

from plain_model import DEMO
from scripted_model import write_safetensors

# A model's shapes and names are those of a checkpoint in this folder, but for the vocabulary.
FAMILIES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../model/golden/families")


def write_hybrid_model(folder, family="qwen3.5"):
    rng, shapes = random.Random(1), os.path.join(FAMILIES, family)
    os.makedirs(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(os.path.join(DEMO, name), os.path.join(folder, name))
    with open(os.path.join(shapes, "config.json")) as f:
        config = json.load(f)
    config.update(vocab_size=3072, max_position_embeddings=2048, bos_token_id=0, eos_token_id=1)
    with open(os.path.join(folder, "config.json"), "w") as f:
        json.dump(config, f)
    with open(os.path.join(shapes, "model.safetensors"), "rb") as f:
        head = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
    weights = {}
    for name, of in head.items():
        if name == "__metadata__":
            continue
        shape = [3072, *of["shape"][1:]] if "embed" in name or "lm_head" in name else of["shape"]
        width = 0.1 if len(shape) == 1 else 0.9 / math.sqrt(shape[-1])
        weights[name] = (shape, [rng.gauss(0, width) for _ in range(math.prod(shape))])
    write_safetensors(os.path.join(folder, "model.safetensors"), weights)
    return folder


if __name__ == "__main__":
    write_hybrid_model(*sys.argv[1:])
