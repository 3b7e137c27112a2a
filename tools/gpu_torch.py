#!/usr/bin/env python3
"""Measures how long PyTorch takes for the same work on this GPU.

  gpu_torch.py NAME:SHAPE DTYPE LENGTHS CSV [--device cpu]

SHAPE is d,layers,heads,kv_heads,ffn,vocabulary of a Llama; NAME is the name of the rows; LENGTHS
are tokens, separated by commas.  For each length it measures the prefill of one sequence (RMS norm,
one GEMM for Q, K and V, RoPE, scaled_dot_product_attention, one GEMM for gate and up), and the copy
of K and V of all layers from pinned memory; and once a decode step after it.  Weights are random; a
time is the median of 5, measured by events.  Prints a table; the CSV has the same."""
import argparse
import csv
import statistics
import sys
import time

try:
    import torch
    import torch.nn.functional as F
except ImportError as e:
    sys.exit(f"gpu_torch: {e}")


class Layer:
    def __init__(self, d, heads, kv, ffn, device, dtype):
        h = d // heads

        def matrix(n, k):
            return torch.randn(n, k, device=device, dtype=dtype) * k**-0.5

        self.qkv, self.o = matrix(d + 2 * kv * h, d), matrix(d, d)
        self.up, self.down = matrix(2 * ffn, d), matrix(d, ffn)
        self.norm = torch.ones(d, device=device, dtype=dtype)


def rotate(x, cos, sin):
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


class Model:
    def __init__(self, shape, device, dtype):
        self.d, self.n_layers, self.heads, self.kv, self.ffn, vocab = shape
        self.h, self.device, self.dtype = self.d // self.heads, device, dtype
        self.layers = [Layer(self.d, self.heads, self.kv, self.ffn, device, dtype) for _ in range(self.n_layers)]
        self.embed = torch.randn(vocab, self.d, device=device, dtype=dtype)

    def angles(self, begin, n):
        f = 1e4 ** (-torch.arange(0, self.h, 2, device=self.device, dtype=torch.float32) / self.h)
        a = torch.outer(torch.arange(begin, begin + n, device=self.device, dtype=torch.float32), f)
        return a.cos().to(self.dtype), a.sin().to(self.dtype)

    @torch.inference_mode()
    def forward(self, ids, cache, begin):
        """ids [n]; cache: K and V of each layer as [1][kv][room][h].  Returns the logits of the
        last token."""
        n = ids.numel()
        cos, sin = self.angles(begin, n)
        x = self.embed[ids]
        for layer, (ck, cv) in zip(self.layers, cache):
            y = F.linear(F.rms_norm(x, (self.d,), layer.norm), layer.qkv)
            q, k, v = y.split([self.d, self.kv * self.h, self.kv * self.h], dim=-1)
            q = rotate(q.view(n, self.heads, self.h).transpose(0, 1), cos, sin)
            ck[0, :, begin:begin + n] = rotate(k.view(n, self.kv, self.h).transpose(0, 1), cos, sin)
            cv[0, :, begin:begin + n] = v.view(n, self.kv, self.h).transpose(0, 1)
            a = F.scaled_dot_product_attention(q[None], ck[:, :, :begin + n], cv[:, :, :begin + n],
                                               is_causal=n > 1, enable_gqa=self.kv != self.heads)
            x = x + F.linear(a[0].transpose(0, 1).reshape(n, self.d), layer.o)
            gate, up = F.linear(F.rms_norm(x, (self.d,), layer.norm), layer.up).chunk(2, dim=-1)
            x = x + F.linear(F.silu(gate) * up, layer.down)
        return F.linear(x[-1:], self.embed)


def median_ms(run, device, runs=5):
    run()
    times = []
    for _ in range(runs):
        if device == "cuda":
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            run()
            end.record()
            end.synchronize()
            times.append(begin.elapsed_time(end))
        else:
            t0 = time.perf_counter()
            run()
            times.append((time.perf_counter() - t0) * 1e3)
    return statistics.median(times)


def copy_up_ms(model, n, device):
    """Copies K and V of every layer from pinned memory, one copy per layer."""
    shape = (2, model.kv, n, model.h)
    up = torch.empty(shape, device=device, dtype=model.dtype)
    host = [torch.randn(shape, dtype=model.dtype) for _ in range(min(4, model.n_layers))]
    host = [h.pin_memory() for h in host] if device == "cuda" else host

    def run():
        for i in range(model.n_layers):
            up.copy_(host[i % len(host)], non_blocking=True)

    return median_ms(run, device)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("shape")
    p.add_argument("dtype", choices=["float16", "bfloat16"])
    p.add_argument("lengths")
    p.add_argument("csv")
    p.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    a = p.parse_args()
    if a.device == "cuda" and not torch.cuda.is_available():
        sys.exit("gpu_torch: PyTorch sees no GPU")
    name, shape = a.shape.split(":")
    model = Model([int(x) for x in shape.split(",")], a.device, getattr(torch, a.dtype))
    with open(a.csv, "w", encoding="utf-8") as f:
        rows = csv.writer(f)
        rows.writerow(["model", "torch", "dtype", "tokens", "prefill_ms", "kv_copy_up_ms", "kv_copy_gb_s", "decode_ms"])
        print(f"{'tokens':>8} {'prefill ms':>12} {'KV up ms':>10} {'GB/s':>7} {'decode ms':>10}")
        for n in map(int, a.lengths.split(",")):
            ids = torch.randint(0, model.embed.shape[0], (n,), device=a.device)
            shape = (1, model.kv, n + 1, model.h)
            cache = [[torch.zeros(shape, device=a.device, dtype=model.dtype) for _ in range(2)]
                     for _ in range(model.n_layers)]
            prefill = median_ms(lambda: model.forward(ids, cache, 0), a.device)
            decode = median_ms(lambda: model.forward(ids[:1], cache, n), a.device)
            del cache
            up = copy_up_ms(model, n, a.device)
            rate = 2 * model.n_layers * model.kv * n * model.h * 2 / up * 1e-6
            rows.writerow([name, torch.__version__, a.dtype, n, f"{prefill:.3f}", f"{up:.3f}", f"{rate:.2f}", f"{decode:.3f}"])
            f.flush()
            print(f"{n:8d} {prefill:12.2f} {up:10.2f} {rate:7.1f} {decode:10.3f}", flush=True)


if __name__ == "__main__":
    main()
