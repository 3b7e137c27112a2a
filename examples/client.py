#!/usr/bin/env python3
"""A client of a running server, with nothing but Python's standard library.

    hcache serve MODEL_DIR --store STORE_DIR &
    python3 client.py http://127.0.0.1:8080 "What is my dog called?"

Lines of standard input are further questions.  The `openai` package works, too: give it
base_url="http://127.0.0.1:8080/v1"."""
import json
import sys
import urllib.request


def ask(url, messages):
    """Prints the answer as it comes, and returns it."""
    body = json.dumps({"messages": messages, "stream": True, "temperature": 0}).encode()
    request = urllib.request.Request(url + "/v1/chat/completions", body, {"Content-Type": "application/json"})
    answer = ""
    with urllib.request.urlopen(request) as response:
        for line in response:
            if not line.startswith(b"data: ") or line.strip() == b"data: [DONE]":
                continue
            event = json.loads(line[6:])
            piece = event["choices"][0]["delta"].get("content") or "" if event["choices"] else ""
            print(piece, end="", flush=True)
            answer += piece
    print()
    return answer


def main():
    if len(sys.argv) < 2:
        sys.exit("usage: client.py URL [QUESTION]")
    messages = []
    questions = sys.argv[2:] or (line.rstrip("\n") for line in sys.stdin)
    for question in questions:
        messages.append({"role": "user", "content": question})
        messages.append({"role": "assistant", "content": ask(sys.argv[1], messages)})


if __name__ == "__main__":
    main()
