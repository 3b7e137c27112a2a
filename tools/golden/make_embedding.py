#!/usr/bin/env python3
"""Writes tests/model/golden/embedding/: a tiny random model of EmbeddingGemma's kind as
sentence-transformers publishes it, with the embeddings that this library makes of some texts in
float64.

    python3 -m venv V && V/bin/pip install torch transformers sentence-transformers
    V/bin/python tools/golden/make_embedding.py

expected.json: "texts", each with its "prompt" (a name of config_sentence_transformers.json, or null)
and its "embedding", of length 1.  Texts end before a window does, cross blocks of 64 tokens, and are longer
than the usual step of 512."""
import json
import pathlib
import shutil
import sys

import torch
import transformers
from safetensors.torch import save_file
from sentence_transformers import SentenceTransformer

from make_families import draw, representable, rope

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "e2e"))
from scripted_model import N_BYTES, tokenizer  # noqa: E402

OUT = ROOT / "tests" / "model" / "golden" / "embedding"
CONTEXT, WIDTH = 640, 48
PROMPTS = {"query": "task: search result | query: ", "document": "title: none | text: "}
TEXT = "A dog ran over the hill, and the sun was warm. Nobody saw where it went; but late in the evening it came home. "


def write(name, content):
    (OUT / name).parent.mkdir(exist_ok=True)
    (OUT / name).write_text(json.dumps(content, indent=1) + "\n")


def main():
    torch.manual_seed(3)
    config = transformers.Gemma3TextConfig(
        vocab_size=N_BYTES + 2, hidden_size=WIDTH, intermediate_size=80, num_hidden_layers=4, num_attention_heads=3,
        num_key_value_heads=1, head_dim=20, rms_norm_eps=1e-6, max_position_embeddings=CONTEXT, sliding_window=24,
        query_pre_attn_scalar=20, bos_token_id=N_BYTES, eos_token_id=N_BYTES + 1, pad_token_id=0,
        use_bidirectional_attention=True,
        layer_types=["sliding_attention", "full_attention", "sliding_attention", "sliding_attention"],
        rope_parameters={"full_attention": rope(500.0), "sliding_attention": rope(100.0)})
    model = transformers.Gemma3TextModel(config)
    draw(model, True, True, 3)
    shutil.rmtree(OUT, ignore_errors=True)
    model.to(torch.bfloat16).save_pretrained(OUT)

    bos, eos = "<bos>", "<eos>"
    words = tokenizer([(bos, True), (eos, True)])
    words["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": bos, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}},
                   {"SpecialToken": {"id": eos, "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {bos: {"id": bos, "ids": [N_BYTES], "tokens": [bos]},
                           eos: {"id": eos, "ids": [N_BYTES + 1], "tokens": [eos]}}}
    write("tokenizer.json", words)
    write("tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": bos, "eos_token": eos,
                                    "pad_token": eos, "model_max_length": CONTEXT})
    kinds = [("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Dense", "Dense"), ("3_Dense", "Dense"),
             ("4_Normalize", "Normalize")]
    write("modules.json", [{"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
                           for i, (path, kind) in enumerate(kinds)])
    write("config_sentence_transformers.json", {"prompts": PROMPTS, "default_prompt_name": None,
                                                "similarity_fn_name": "cosine"})
    write("sentence_bert_config.json", {"max_seq_length": CONTEXT, "do_lower_case": False})
    write("1_Pooling/config.json", {"word_embedding_dimension": WIDTH, "pooling_mode_cls_token": False,
                                    "pooling_mode_mean_tokens": True, "include_prompt": True})
    widths = [WIDTH, 80, WIDTH]  # llama.cpp wants the last to be the first
    for i in range(2):
        name = kinds[2 + i][0]
        write(f"{name}/config.json", {"in_features": widths[i], "out_features": widths[i + 1], "bias": False,
                                      "activation_function": "torch.nn.modules.linear.Identity"})
        weight = representable(torch.randn(widths[i + 1], widths[i]) / widths[i] ** 0.5)
        save_file({"linear.weight": weight}, OUT / name / "model.safetensors")

    judge = SentenceTransformer(str(OUT), device="cpu", model_kwargs={"dtype": torch.float64}).double().eval()
    texts = [(None, "a"), ("query", "dog"), ("document", TEXT[:40]), (None, TEXT[:61]), ("query", TEXT),
             (None, (TEXT * 2)[:190]), (None, (TEXT * 6)[:CONTEXT - 2])]
    found = []
    for prompt, text in texts:
        embedding = judge.encode([text], prompt_name=prompt, normalize_embeddings=True, convert_to_tensor=True)[0]
        found.append({"prompt": prompt, "text": text, "embedding": [float(f"{x:.9g}") for x in embedding.tolist()]})
        print(prompt, len(text), embedding.dtype, found[-1]["embedding"][:3])
    write("expected.json", {"library": f"transformers {transformers.__version__}", "texts": found})


if __name__ == "__main__":
    main()
