"""Checks the shipped folder against Hugging Face transformers, the reference.

  python check_oracle.py ../../models/demo

Token ids of the rendered template, f32 logits and greedy continuations must equal those in
golden.json."""
import json
import sys

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer


def main():
    folder = sys.argv[1]
    tok = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    golden = json.load(open(f"{folder}/golden.json"))
    for case in golden["cases"]:
        ids = tok(case["prompt"], add_special_tokens=False, return_tensors="pt")
        assert ids.input_ids[0].tolist() == case["prompt_ids"]
        out = model.generate(**ids, max_new_tokens=160, do_sample=False)[0, ids.input_ids.shape[1]:].tolist()
        assert out == case["greedy_ids"], (tok.decode(out), case["text"])
        with torch.no_grad():
            logits = model(**ids).logits[0, -1]
        if "last_prompt_logits_f32" in case:
            diff = (logits - torch.tensor(case["last_prompt_logits_f32"])).abs().max().item()
            assert diff < 1e-3, diff
            print(f"dialogue {case['dialogue']}: {len(case['prompt_ids'])} tokens, logits differ by {diff:.1e}")
    chat = [{"role": "user", "content": "Hello!"}, {"role": "assistant", "content": "Hi."},
            {"role": "user", "content": "How are you?"}]
    text = tok.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    assert text == ("<|begin|><|user|>Hello!<|end|><|assistant|>Hi.<|end|>"
                    "<|user|>How are you?<|end|><|assistant|>"), text
    print(f"{len(golden['cases'])} cases agree")


if __name__ == "__main__":
    main()
