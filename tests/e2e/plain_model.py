"""A small model without a chat template, for the tests of this directory.

The model is models/demo with three changes: no chat template, a BOS before every prompt, and a
context of 512 tokens. Unless a test asks for an end-of-text token, the model has none, so that an
answer has the length that the test wants: <|end|>, which ends a turn by its text, has another one. `python3 plain_model.py DIR` writes the model into
DIR."""
import json
import os
import shutil
import sys

DEMO = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../models/demo")


BOS, TEXT = {"SpecialToken": {"id": "<|begin|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}
BOS_FIRST = {"type": "TemplateProcessing", "single": [BOS, TEXT], "pair": [BOS, TEXT],
             "special_tokens": {"<|begin|>": {"id": "<|begin|>", "ids": [0], "tokens": ["<|begin|>"]}}}


def write_plain_model(folder, ends=False):
    """Writes a writable copy of the model into the folder and returns the folder."""
    os.makedirs(folder, exist_ok=True)
    shutil.copyfile(os.path.join(DEMO, "model.safetensors"), os.path.join(folder, "model.safetensors"))
    change(folder, "tokenizer.json", ends, post_processor=BOS_FIRST)
    change(folder, "config.json", max_position_embeddings=512, **({} if ends else {"eos_token_id": None}))
    change(folder, "tokenizer_config.json", chat_template=None,
           **({} if ends else {"eos_token": None}))
    return folder


def change(folder, name, ends=True, **fields):
    """Writes the demo model's JSON file `name` into the folder with these fields changed; None
    removes a field. ends: <|end|> keeps its text."""
    with open(os.path.join(DEMO, name)) as f:
        text = f.read()
    settings = {**json.loads(text if ends else text.replace("<|end|>", "<|stop|>")), **fields}
    with open(os.path.join(folder, name), "w") as f:
        json.dump({k: v for k, v in settings.items() if v is not None}, f)


def exchanged(path, a, b):
    """Writes a model like the demo model, whose layers a and b have each other's weights."""
    shutil.copytree(DEMO, path)
    with open(os.path.join(path, "model.safetensors"), "r+b") as f:
        head = f.read(int.from_bytes(f.read(8), "little"))
        names = [b"layers.%d." % n for n in (a, b)]
        f.seek(8)
        f.write(head.replace(names[0], b"layers.X.").replace(names[1], names[0]).replace(b"layers.X.", names[1]))


if __name__ == "__main__":
    write_plain_model(sys.argv[1])
