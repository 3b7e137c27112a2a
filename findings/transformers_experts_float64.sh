#!/usr/bin/env bash
# transformers 5.24.0 with torch 2.15.0, CPU (seen on 29 November 2026).
#
# A mixture of experts cannot run in float64 on a CPU, a dense model of the same library can.
# transformers 5 computes experts by torch's grouped product by default ("grouped_mm"), which takes
# float32, bfloat16 and float16 alone, so whoever uses float64 as an oracle for numbers, as for every
# other family, gets
#   RuntimeError: Expected mat_a to be Float32, BFloat16 or Float16 matrix, got Double
# from the first layer with experts. Nothing at loading says so. With experts_implementation="eager"
# the same model runs, and float64 and float32 agree to 1e-6.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/v"
"$dir/v/bin/pip" install -q torch==2.15.0 transformers==5.24.0
cd "$dir"
"$dir/v/bin/python" -W ignore - <<'PY'
import torch
from transformers import AutoModelForCausalLM, Qwen3Config, Qwen3MoeConfig

base = dict(vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, max_position_embeddings=64)
experts = Qwen3MoeConfig(**base, moe_intermediate_size=16, num_local_experts=4, num_experts_per_tok=2)
ids = torch.arange(3, 40)[None]


def run(config, dtype, **more):
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, **more).to(dtype).eval()
    with torch.no_grad():
        return model(ids).logits


run(Qwen3Config(**base), torch.float64)
narrow = run(experts, torch.float32)
try:
    run(experts, torch.float64)
    raise SystemExit("changed: experts run in float64 by default")
except RuntimeError as e:
    assert "got Double" in str(e), e
wide = run(experts, torch.float64, experts_implementation="eager")
assert float((wide - narrow).abs().max()) < 1e-5
print("as seen: a dense model runs in float64, one with experts does not, except eagerly")
PY
