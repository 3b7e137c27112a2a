"""Embeddings and rankings over HTTP: what the numbers are, judged by the model's own logits; batches
larger than the queue; the clients' forms; and what is refused by name.

The models are models/demo with a file that names its pooling, and a small Qwen3 with random weights."""
import base64
import json
import math
import os
import random
import shutil
import struct
import subprocess
import sys
import tempfile

VENV = ".venv/bin/python"  # has the clients, if it is there
if "HCACHE_IN_VENV" not in os.environ and os.path.exists(VENV):
    os.execve(VENV, [VENV, *sys.argv], {**os.environ, "HCACHE_IN_VENV": "1"})

sys.path.insert(0, "tools/golden")
import hf_to_gguf  # noqa: E402
from scripted_model import N_BYTES, make_reranker, tokenizer, write_safetensors
from serve_client import HC, Server
from tap import check, end, equal, skip

DEMO = "models/demo"
GEMMA = "tests/model/golden/embedding"
TEXT = "Once upon a time there was a dog."


def pooled(folder, mode, name=None, **config):
    """Writes the demo model with a pooling and these fields of config.json, and returns the folder."""
    out = os.path.join(folder, name or mode)
    shutil.copytree(DEMO, out)
    with open(os.path.join(DEMO, "config.json")) as f:
        config = {**json.load(f), **config}
    with open(os.path.join(out, "config.json"), "w") as f:
        json.dump(config, f)
    os.makedirs(os.path.join(out, "1_Pooling"))
    with open(os.path.join(out, "1_Pooling", "config.json"), "w") as f:
        json.dump({"word_embedding_dimension": 256, f"pooling_mode_{mode}": True}, f)
    return out


def embed(s, texts, **fields):
    status, _, r = s.post("/v1/embeddings", {"input": texts, **fields})
    if status != 200:
        raise RuntimeError(f"{status}: {r}")
    return [d["embedding"] for d in r["data"]]


def floats(text):
    raw = base64.b64decode(text)
    return list(struct.unpack(f"<{len(raw) // 4}f", raw))


def length(v):
    return math.sqrt(sum(x * x for x in v))


def demo_table():
    """Returns the rows of the demo model's embedding table, which is its head, too."""
    with open(os.path.join(DEMO, "model.safetensors"), "rb") as f:
        head = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
        entry = head["model.embed_tokens.weight"]
        here = f.tell()
        f.seek(here + entry["data_offsets"][0])
        raw = f.read(entry["data_offsets"][1] - entry["data_offsets"][0])
    assert entry["dtype"] == "BF16"
    n = entry["shape"][1]
    values = struct.unpack(f"<{len(raw) // 2}I", b"".join(b"\0\0" + raw[i:i + 2] for i in range(0, len(raw), 2)))
    values = struct.unpack(f"<{len(values)}f", struct.pack(f"<{len(values)}I", *values))
    return [values[i:i + n] for i in range(0, len(values), n)]


def numbers(s):
    raw = s.post("/api/embeddings", {"prompt": TEXT})[2]["embedding"]
    logits = [sum(a * b for a, b in zip(row, raw)) for row in demo_table()]
    most = max(logits)
    log_sum = most + math.log(sum(math.exp(x - most) for x in logits))
    tops = s.post("/completion", {"prompt": TEXT, "n_predict": 1, "n_probs": 5, "temperature": 0})[2]
    tops = tops["completion_probabilities"][0]["top_logprobs"]
    worst = max(abs(t["logprob"] - (logits[t["id"]] - log_sum)) for t in tops)
    check("the last token's embedding is what the head makes the next token's logits of", worst < 1e-3, worst)
    unit = embed(s, TEXT)[0]
    check("/v1/embeddings: of length 1, else the same", abs(length(unit) - 1) < 1e-5
          and max(abs(a - b / length(raw)) for a, b in zip(unit, raw)) < 1e-6, (length(unit), unit[:3]))
    single = list(struct.unpack(f"<{len(unit)}f", struct.pack(f"<{len(unit)}f", *unit)))
    equal("base64 has the same numbers", floats(embed(s, TEXT, encoding_format="base64")[0]), single)
    cut = embed(s, TEXT, dimensions=64)[0]
    check("dimensions cuts and scales again", len(cut) == 64 and abs(length(cut) - 1) < 1e-5
          and max(abs(a - b / length(unit[:64])) for a, b in zip(cut, unit)) < 1e-6, cut[:3])
    ids = s.post("/tokenize", {"content": TEXT})[2]["tokens"]
    equal("token ids give the text's embedding", embed(s, ids), [unit])
    equal("so do lists of ids", embed(s, [ids, ids[:3]])[0], unit)


def batches(s, other):
    texts = [f"A dog number {i} ran. " * (1 + i % 6) for i in range(150)]
    status, _, r = s.post("/v1/embeddings", {"input": texts})
    check("150 texts through a queue of 4: all there, in order", status == 200 and r["object"] == "list"
          and [d["index"] for d in r["data"]] == list(range(150)), status)
    check("usage counts all tokens", r["usage"]["prompt_tokens"] == r["usage"]["total_tokens"] > 1500, r["usage"])
    got = [d["embedding"] for d in r["data"]]
    some = (0, 1, 77, 149)
    equal("a text's embedding does not depend on the others", [embed(s, texts[i])[0] for i in some], [got[i] for i in some])
    equal("nor on state of earlier texts", [embed(other, texts[i])[0] for i in some], [got[i] for i in some])


def ollama(s):
    unit = embed(s, TEXT)[0]
    r = s.post("/api/embed", {"model": s.name, "input": [TEXT, "b"], "keep_alive": "5m", "options": {"num_ctx": 512}})[2]
    check("/api/embed", r["embeddings"][0] == unit and len(r["embeddings"]) == 2 and r["prompt_eval_count"] > 2
          and r["total_duration"] > 0 and r["model"], r.get("error"))
    long = "a dog ran. " * 400
    r = s.post("/api/embed", {"input": long})[2]
    equal("/api/embed cuts a text that is too long", r.get("prompt_eval_count"), 512)
    status, _, r = s.post("/api/embed", {"input": long, "truncate": False})
    check("or refuses it if that is wanted", status == 400 and "512" in r["error"], r)


def without_head(folder, unit):
    """Some checkpoints of models for embeddings have untied heads in their config, and no head."""
    path = pooled(folder, "lasttoken", "headless", tie_word_embeddings=False)
    packed = os.path.join(folder, "headless.hcm")
    subprocess.run([HC, "model", "pack", path, "--out", packed], capture_output=True, check=True)
    for model in (path, packed):
        s = Server(model)
        equal("without a head: the same embedding", embed(s, TEXT)[0], unit)
        status, _, r = s.post("/v1/completions", {"prompt": TEXT})
        check("and no text, with the reason", status == 400 and "lm_head" in r["error"]["message"], r)
        s.stop()
    os.remove(os.path.join(path, "1_Pooling", "config.json"))
    run = subprocess.run([HC, "run", path, "--prompt", "a"], capture_output=True, text=True)
    check("a model for text needs its head", run.returncode != 0 and "'lm_head.weight' is missing" in run.stderr, run.stderr)


def refusals(s):
    for name, body, word in (
            ("no input", {}, "input"), ("an empty list", {"input": []}, "input"), ("an empty text", {"input": [""]}, "input"),
            ("a number", {"input": 5}, "input"), ("an object", {"input": [{}]}, "input"),
            ("a part that is no text", {"input": {"content": [{"type": "image_url", "text": "a"}]}}, "number 0"),
            ("a token that does not exist", {"input": [1 << 20]}, "input"),
            ("too many texts", {"input": ["a"] * 2049}, "2048"), ("dimensions", {"input": "a", "dimensions": 257}, "256"),
            ("dimensions 0", {"input": "a", "dimensions": 0}, "dimensions"),
            ("a format", {"input": "a", "encoding_format": "int8"}, "encoding_format"),
            ("a misspelt field", {"input": "a", "encodin_format": "float"}, "encodin_format")):
        status, _, r = s.post("/v1/embeddings", body)
        check(f"{name} is refused by name", status == 400 and word in r["error"]["message"], (status, r))
    parts = {"content": [{"type": "text", "text": TEXT[:7]}, {"type": "text", "text": TEXT[7:]}]}
    equal("a text in parts is the text", embed(s, [parts, TEXT])[0], embed(s, TEXT)[0])
    status, _, r = s.post("/v1/embeddings", {"input": ["a", "a dog ran. " * 400]})
    check("a text that is too long: how long, and the context", status == 400 and r["error"]["n_prompt_tokens"] > 512
          and r["error"]["n_ctx"] == 512 and r["error"]["code"] == "context_length_exceeded", r)
    status, _, r = s.post("/v1/rerank", {"query": "a", "documents": ["b"]})
    check("a model for embeddings ranks nothing", status == 400 and "made for embeddings" in r["error"]["message"], r)


def clients(s):
    """The official clients, where they are installed."""
    unit = embed(s, TEXT)[0]
    try:
        import openai
    except ImportError:
        skip("openai's client", "it is not installed (tools/setup.sh --clients)")
        return
    c = openai.OpenAI(base_url=f"http://127.0.0.1:{s.port}/v1", api_key="x")
    r = c.embeddings.create(model=s.name, input=[TEXT, "b"])
    check("openai's client, which asks for base64", [round(x, 6) for x in r.data[0].embedding] == [round(x, 6) for x in unit]
          and r.usage.total_tokens > 2, r.usage)
    try:
        import ollama as client
        from langchain_ollama import OllamaEmbeddings
    except ImportError:
        skip("ollama's client", "it is not installed (tools/setup.sh --clients)")
        return
    r = client.Client(f"http://127.0.0.1:{s.port}").embed(model=s.name, input=[TEXT, "b"])
    check("ollama's client", list(r.embeddings[0]) == unit and len(r.embeddings) == 2)
    vectors = OllamaEmbeddings(model=s.name, base_url=f"http://127.0.0.1:{s.port}").embed_documents([TEXT, "b"])
    equal("langchain's embeddings over Ollama's route", vectors[0], unit)


# The prompt of the model card.
CARD = ('<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct '
        'provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n<Instruct>: {0}\n'
        '<Query>: {1}\n<Document>: {2}<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n')
TASK = "Given a web search query, retrieve relevant passages that answer the query"


def ranking(s):
    documents = ["Lily has a dog.", "It rained.", "A dog is an animal that barks.", "no"]

    def score(document, task=TASK):
        """Returns P(yes) by the log-probabilities of the prompt with each word behind it."""
        lp = []
        for word in ("yes", "no"):
            r = s.complete(CARD.format(task, "What is a dog?", document) + word, max_tokens=0, echo=True, logprobs=0)
            lp.append(r["choices"][0]["logprobs"]["token_logprobs"][-1])
        return 1 / (1 + math.exp(lp[1] - lp[0]))

    want = [score(d) for d in documents]
    status, _, r = s.post("/v1/rerank", {"query": "What is a dog?", "documents": documents, "return_documents": True})
    got = {x["index"]: x["relevance_score"] for x in r["results"]}
    check("a score is the probability of yes behind the model card's prompt", status == 200
          and max(abs(got[i] - w) for i, w in enumerate(want)) < 1e-5, (got, want))
    scores = [x["relevance_score"] for x in r["results"]]
    check("the best stands first, with its text", scores == sorted(scores, reverse=True) and len(set(scores)) == 4
          and all(x["document"]["text"] == documents[x["index"]] for x in r["results"]), r["results"])
    best = s.post("/rerank", {"query": "What is a dog?", "documents": [{"text": d} for d in documents], "top_n": 2})[2]["results"]
    tei = s.post("/rerank", {"query": "What is a dog?", "texts": documents, "return_text": True, "top_n": 3})[2]
    equal("TEI's form: a list of index, score and text", tei,
          [{"index": x["index"], "score": x["relevance_score"], "text": documents[x["index"]]} for x in r["results"][:3]])
    equal("top_n, and documents as objects", [(x["index"], x["relevance_score"]) for x in best],
          [(x["index"], x["relevance_score"]) for x in r["results"][:2]])
    own = s.post("/v1/rerank", {"query": "What is a dog?", "documents": documents[:1], "instruction": "Find dogs"})[2]["results"]
    check("an instruction of one's own", abs(own[0]["relevance_score"] - score(documents[0], "Find dogs")) < 1e-5, own)
    plain = s.post("/v1/rerank", {"query": "What is a dog?", "documents": ["<|im_end|>"]})[2]["results"][0]["relevance_score"]
    check("a special token in a document stays text", abs(plain - score("<|im_end|>")) > 1e-7, plain)
    for name, body, word in (("no query", {"documents": ["a"]}, "query"), ("no documents", {"query": "a"}, "documents"),
                             ("a document that is a number", {"query": "a", "documents": [1]}, "documents"),
                             ("top_n 0", {"query": "a", "documents": ["b"], "top_n": 0}, "top_n"),
                             ("an unknown field", {"query": "a", "documents": ["b"], "topn": 1}, "topn")):
        status, _, r = s.post("/v1/rerank", body)
        check(f"{name} is refused by name", status == 400 and word in r["error"]["message"], r)
    status, _, r = s.post("/v1/embeddings", {"input": "a"})
    check("a reranker makes no embeddings", status == 400 and "/v1/rerank" in r["error"]["message"], r)


def chosen(folder):
    """A pooling that an option chooses gives the numbers of a model whose files name it."""
    named = pooled(folder, "mean_tokens", "means")
    of_files, of_option = Server(named), Server(DEMO, "--pooling", "mean")
    equal("--pooling mean is the pooling that a file names", embed(of_option, TEXT), embed(of_files, TEXT))
    of_files.stop()
    of_option.stop()
    with open(os.path.join(named, "modules.json"), "w") as f:
        json.dump([{"type": "sentence_transformers.models.Dense", "path": "2_Dense"}], f)
    p = subprocess.run([HC, "serve", named, "--pooling", "mean", "--port", "0"], capture_output=True, text=True)
    check("a model with an unknown part behind its pooling is refused by name", p.returncode == 1 and "a layer behind it" in p.stderr, p)


def both_ways(folder):
    """A model of EmbeddingGemma's kind, judged by sentence-transformers (tools/golden/make_embedding.py)."""
    def load(name):
        with open(os.path.join(GEMMA, name)) as f:
            return json.load(f)

    prompts, cases = load("config_sentence_transformers.json")["prompts"], load("expected.json")["texts"]
    texts = [prompts.get(c["prompt"], "") + c["text"] for c in cases]
    s = Server(GEMMA, "--dtype", "f32", "--threads", "1", "--max-sequences", "3")
    got = embed(s, texts)
    worst = max(abs(a - b) for g, c in zip(got, cases) for a, b in zip(g, c["embedding"]))
    check("attention both ways, two layers behind the pooling: sentence-transformers' numbers", worst < 1e-5, worst)
    gguf, packed = os.path.join(folder, "both.gguf"), os.path.join(folder, "both.hcm")
    hf_to_gguf.convert(GEMMA, gguf)
    subprocess.run([HC, "model", "pack", GEMMA, "--out", packed], capture_output=True, check=True)
    for model in (GEMMA, gguf, packed):
        other = Server(model, "--dtype", "f32", "--threads", "3")
        equal(f"one by one, with other threads, from {model[-5:]}: the same bits", [embed(other, t)[0] for t in texts], got)
        other.stop()
    show = s.post("/api/show", {"model": "default"})[2]
    check("Ollama is told the length of embeddings", show["capabilities"] == ["embedding"]
          and show["model_info"]["gemma3_text.embedding_length"] == len(got[0]), show)
    ours, raw = (s.post("/embedding", {"content": texts[3:5], "embd_normalize": n})[2] for n in (2, -1))
    equal("llama-server's", ours, [{"index": i, "embedding": [got[3 + i]]} for i in range(2)])
    check("as they are", abs(length(raw[0]["embedding"][0]) - 1) > 0.01 and s.post("/embedding", {"content": "a", "embd_normalize": 1})[0] == 400, raw)
    equal("Ollama's", s.post("/api/embed", {"input": texts[3]})[2]["embeddings"], [got[3]])
    status, _, r = s.post("/v1/embeddings", {"input": texts[6] + "more"})
    check("a text longer than the context", status == 400 and r["error"]["n_ctx"] == 640 and r["error"]["n_prompt_tokens"] == 644, r)
    for path, body in (("/v1/completions", {"prompt": "a"}), ("/completion", {"prompt": "a"}), ("/api/generate", {"prompt": "a"}),
                       ("/v1/completions", {"prompt": "a", "max_tokens": 0, "echo": True, "logprobs": 0})):
        status, _, r = s.post(path, body)
        check(f"{path}: no text", status == 400 and "sees both ways" in json.dumps(r), r)
    s.stop()
    for args in (("run", GEMMA, "--prompt", "a"), ("ppl", GEMMA, "README.md")):
        p = subprocess.run([HC, *args], capture_output=True, text=True, timeout=60)
        check(f"{args[0]}: refused by name", p.returncode != 0 and "sees both ways" in p.stderr, p)
    p = subprocess.run([HC, "model", "info", GEMMA], capture_output=True, text=True)
    check("model info tells it", "of 48 numbers, pooling mean; attention sees both ways, so no state is saved" in p.stdout, p)


with tempfile.TemporaryDirectory(prefix="hcache-embed.") as folder:
    model = pooled(folder, "lasttoken")
    options = ("--max-context", "512", "--max-sequences", "3", "--max-queue", "4")
    s, other = Server(model, *options), Server(model, *options, "--no-reuse")
    s.name = "lasttoken"
    numbers(s)
    batches(s, other)
    ollama(s)
    refusals(s)
    clients(s)
    without_head(folder, embed(s, TEXT)[0])
    equal("the server stops with status 0", s.stop(), 0)
    other.stop()
    s = Server(make_reranker(os.path.join(folder, "reranker")), "--max-sequences", "3")
    ranking(s)
    s.stop()
    chosen(folder)
    both_ways(folder)
s = Server(DEMO)
status, _, r = s.post("/v1/embeddings", {"input": "a"})
check("a chat model makes no embeddings", status == 400 and "name no pooling" in r["error"]["message"], r)
s.stop()
end()
