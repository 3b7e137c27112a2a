"""Runs lm-eval on a server of models/demo, and compares its log-likelihoods with those of a forward pass in numpy (f64).

    python3 bench/lm_eval_check.py

The Python has lm-eval[api], transformers (for the tokenizer alone) and numpy. The server runs with weights and state in f32.
Prints the largest difference, and fails above 1e-3. Nothing is downloaded."""
import glob
import json
import os
import subprocess
import sys
import tempfile

sys.path.append(sys.path.pop(0))  # this folder has a tokenizers.py, too
import numpy as np  # noqa: E402
from transformers import AutoTokenizer  # noqa: E402

from servers import start  # noqa: E402

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
DEMO = os.path.join(ROOT, "models/demo")
ROWS = [{"q": "Once upon a time there was a little", "choices": ["girl", "stone"]}, {"q": "The sun is", "choices": ["hot and yellow", "cold"]},
        {"q": "Tim has a", "choices": ["dog named Spot", "xylophone", "big red ball. He likes"]}]
TASK = """task: tiny
dataset_path: json
dataset_kwargs: {data_files: {test: %s}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{q}}"
doc_to_choice: "{{choices}}"
doc_to_target: 0
metric_list: [{metric: acc}]
"""


def load():
    with open(os.path.join(DEMO, "model.safetensors"), "rb") as f:
        head = json.loads(f.read(int.from_bytes(f.read(8), "little")))
        data = f.read()
    bf16 = {k: np.frombuffer(data[slice(*t["data_offsets"])], np.uint16).astype(np.uint32) << 16 for k, t in head.items() if k != "__metadata__"}
    return {k: v.view(np.float32).astype(np.float64).reshape(head[k]["shape"]) for k, v in bf16.items()}


def log_probabilities(c, w, ids):
    """Returns those of all tokens behind each of the ids, by the formulas of the model card."""
    heads, d, n = c["num_attention_heads"], c["head_dim"], len(ids)
    angle = np.arange(n)[:, None] * c["rope_theta"] ** (-np.arange(0, d, 2) / d)
    cos, sin = np.cos(angle)[:, None], np.sin(angle)[:, None]

    def norm(x, name):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + c["rms_norm_eps"]) * w[name + ".weight"]

    def rotate(x):
        a, b = x[..., :d // 2], x[..., d // 2:]
        return np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)
    x = w["model.embed_tokens.weight"][ids]
    for layer in range(c["num_hidden_layers"]):
        at = f"model.layers.{layer}."
        times = lambda x, name: x @ w[f"{at}{name}.weight"].T  # noqa: E731, B023
        h = norm(x, at + "input_layernorm")
        q, k, v = (times(h, f"self_attn.{p}_proj").reshape(n, heads, d) for p in "qkv")
        score = np.einsum("qhd,khd->hqk", rotate(q), rotate(k)) / np.sqrt(d)
        score = np.exp(np.where(np.tri(n, dtype=bool), score, -np.inf) - score.max())
        x = x + times(np.einsum("hqk,khd->qhd", score / score.sum(-1, keepdims=True), v).reshape(n, -1), "self_attn.o_proj")
        h = norm(x, at + "post_attention_layernorm")
        gate = times(h, "mlp.gate_proj")
        x = x + times(gate / (1 + np.exp(-gate)) * times(h, "mlp.up_proj"), "mlp.down_proj")
    z = norm(x, "model.norm") @ w["model.embed_tokens.weight"].T
    z = z - z.max(-1, keepdims=True)
    return z - np.log(np.exp(z).sum(-1, keepdims=True))


with open(os.path.join(DEMO, "config.json")) as f:
    config = json.load(f)
weights, tokenizer, worst = load(), AutoTokenizer.from_pretrained(DEMO), 0
with tempfile.TemporaryDirectory() as tmp:
    with open(os.path.join(tmp, "rows.jsonl"), "w") as f:
        f.write("\n".join(map(json.dumps, ROWS)))
    with open(os.path.join(tmp, "tiny.yaml"), "w") as f:
        f.write(TASK % os.path.join(tmp, "rows.jsonl"))
    p, port = start([os.environ.get("HCACHE", os.path.join(ROOT, "build/hcache")), "serve", DEMO, "--dtype", "f32", "--weights", "f32"])
    args = f"model=demo,base_url=http://127.0.0.1:{port}/v1/completions,tokenizer={DEMO},tokenizer_backend=huggingface"
    done = subprocess.run([sys.executable, "-m", "lm_eval", "run", "--model", "local-completions", "--model_args", args, "--include_path", tmp,
                           "--tasks", "tiny", "--output_path", os.path.join(tmp, "out"), "--log_samples"], capture_output=True, text=True,
                          env={**os.environ, "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"})
    p.terminate()
    p.wait()
    files = glob.glob(os.path.join(tmp, "out", "*", "samples*.jsonl"))
    if done.returncode != 0 or not files:
        sys.exit(done.stdout[-2000:] + done.stderr[-2000:])
    n = 0
    for line in open(files[0]):
        row = json.loads(line)
        for choice, got in zip(row["doc"]["choices"], row["filtered_resps"]):
            begin = len(tokenizer.encode(row["doc"]["q"], add_special_tokens=False))
            ids = tokenizer.encode(f"{row['doc']['q']} {choice}", add_special_tokens=False)
            lp = log_probabilities(config, weights, np.array(ids))
            want = sum(lp[i - 1, ids[i]] for i in range(begin, len(ids)))
            worst, n = max(worst, abs(float(got[0]) - want)), n + 1
            print(f"{row['doc']['q']} {choice}: {float(got[0]):.5f}, by numpy {want:.5f}")
print(f"{n} log-likelihoods, largest difference {worst:.2g}")
sys.exit(int(n != sum(len(r["choices"]) for r in ROWS) or worst > 1e-3))
