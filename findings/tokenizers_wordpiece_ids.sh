#!/usr/bin/env bash
# tokenizers 0.23.3 (seen on 29 November 2026).
#
# WordPieceTrainer gives the same tokens other ids each time it is trained on the same text, so two
# trainings encode one text differently; with one thread, too. BpeTrainer, on which it stands, gives
# the same file each time. The ids of the continuing letters (##a, ##b ..) come in the order of a
# hash table; all later merges break their ties by these ids. Nothing warns, and the set of tokens is
# equal, so a comparison of vocabularies as sets sees nothing. Keep a trained tokenizer.json: it
# cannot be made again. Seen: 4 files of 4 for WordPiece, 1 of 4 for BPE.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/v"
"$dir/v/bin/pip" install -q tokenizers==0.23.3
cat >"$dir/train.py" <<'PY'
import hashlib
import random

from tokenizers import Tokenizer, models, pre_tokenizers, trainers

rnd = random.Random(1)
texts = [" ".join("".join(rnd.choice("abcde") for _ in range(rnd.randint(1, 4))) for _ in range(30)) for _ in range(300)]


def digests(model, trainer):
    t = Tokenizer(model(unk_token="[UNK]"))
    t.pre_tokenizer = pre_tokenizers.Whitespace()
    t.train_from_iterator(texts, trainer(vocab_size=150, show_progress=False, special_tokens=["[UNK]"]))
    v = t.get_vocab()
    return " ".join(hashlib.sha256(repr(x).encode()).hexdigest()[:12] for x in (sorted(v), sorted(v.items())))


print(digests(models.BPE, trainers.BpeTrainer), digests(models.WordPiece, trainers.WordPieceTrainer))
PY
cd "$dir"
for _ in 1 2 3 4; do RAYON_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false "$dir/v/bin/python" train.py; done >seen
kinds() { cut -d' ' -f"$1" seen | sort -u | wc -l; }
echo "of 4 trainings: BPE $(kinds 1) sets of tokens, $(kinds 2) of ids; WordPiece $(kinds 3) sets of tokens, $(kinds 4) of ids"
[ "$(kinds 1)$(kinds 2)$(kinds 3)" = 111 ] && [ "$(kinds 4)" -gt 1 ]
