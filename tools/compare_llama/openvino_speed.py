"""Prints the speed of OpenVINO GenAI with a GGUF file: prefill and decoding, in tokens/s.

  openvino_speed.py F.gguf [--tokens 512] [--answer 24] [--rounds 5] [--threads 2]

`pip install openvino-genai` into an environment of its own first: it is no dependency of hcache.  Its
GGUF reader needs the tokenizer's whole metadata, so it refuses files that made_gguf.py has made.  A
round that does not count comes first.
"""
import argparse
import random
import statistics

import numpy
import openvino
import openvino_genai

parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
parser.add_argument("model")
parser.add_argument("--tokens", type=int, default=512)
parser.add_argument("--answer", type=int, default=24)
parser.add_argument("--rounds", type=int, default=5)
parser.add_argument("--threads", type=int, default=2)
args = parser.parse_args()

pipeline = openvino_genai.LLMPipeline(args.model, "CPU", INFERENCE_NUM_THREADS=args.threads)
config = openvino_genai.GenerationConfig()
config.max_new_tokens, config.ignore_eos, config.do_sample = args.answer, True, False
rng = random.Random(1)
prefill, decode = [], []
for i in range(args.rounds + 1):
    ids = numpy.array([[rng.randrange(300, 32000) for _ in range(args.tokens)]], dtype=numpy.int64)
    inputs = openvino_genai.TokenizedInputs(openvino.Tensor(ids), openvino.Tensor(numpy.ones_like(ids)))
    metrics = pipeline.generate(inputs, config).perf_metrics
    if i > 0:
        prefill.append(args.tokens * 1e3 / metrics.get_ttft().mean)
        decode.append(1e3 / metrics.get_tpot().mean)
print(f"OpenVINO GenAI {openvino_genai.__version__}: prefill {statistics.median(prefill):.0f} (best {max(prefill):.0f}), "
      f"decode {statistics.median(decode):.1f}")
