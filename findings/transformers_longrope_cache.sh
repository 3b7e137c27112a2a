#!/usr/bin/env bash
# transformers 5.24.0 with torch 2.15.0, CPU (seen on 29 November 2026).
#
# A Phi-3 with LongRoPE gives other logits with a cache than without, in float64, where a context
# crosses its original length. The library chooses between the two sets of factors by the length of
# each call: keys that were cached while the context was short stay rotated by the short factors, and
# queries behind the border use the long ones; one pass over the whole context uses the long factors
# for all. (generate() throws the cache away at the border for this reason; calls of forward() do
# not, and nothing warns.) Seen with random weights: 8e-4 to 1.2e-3 of the largest logit for cuts
# before the border, exactly 0 for cuts behind it. An engine that saves keys must fix the set of
# factors when it starts.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/v"
"$dir/v/bin/pip" install -q torch==2.15.0 transformers==5.24.0
cd "$dir"
"$dir/v/bin/python" -W ignore - <<'PY'
import torch
from transformers import AutoModelForCausalLM, Phi3Config

torch.manual_seed(0)
config = Phi3Config(
    vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, max_position_embeddings=256, pad_token_id=0, eos_token_id=1, bos_token_id=2,
    original_max_position_embeddings=32,
    rope_parameters=dict(rope_type="longrope", rope_theta=10000.0, original_max_position_embeddings=32, factor=8.0,
                         short_factor=[1.0] * 4, long_factor=[1.0, 2.0, 4.0, 8.0]))
model = AutoModelForCausalLM.from_config(config, dtype=torch.float64).eval()
ids = torch.randint(3, 64, (1, 48))
with torch.no_grad():
    whole = model(ids, use_cache=False).logits
    for cut, differs in ((16, True), (32, True), (33, False), (40, False)):
        first = model(ids[:, :cut], use_cache=True)
        rest = model(ids[:, cut:], past_key_values=first.past_key_values).logits
        d = float((rest - whole[:, cut:]).abs().max() / whole.abs().max())
        print(f"cut after {cut}: {d:.1e}")
        assert (d > 1e-5) == differs and (differs or d < 1e-12), "changed"
PY
