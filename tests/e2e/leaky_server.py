"""A server that streams chat answers to a question for a name. Its argument chooses a fault:

  honest   answers with the name that the conversation gave
  leaky    answers with the last name that any warm conversation gave
  forgets  answers a warm question without the name
  noisy    adds a random word to each answer
  refuses  answers 400

A request with "cache_prompt": false is cold, any other is warm. A cold request gets an honest
answer, except from `noisy`."""
import json
import random
import re
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

fault = sys.argv[1]
last = "nobody"


def answer_of(body):
    global last
    text = " ".join(m["content"] for m in body["messages"] if m["role"] == "user")
    told = dict(re.findall(r"My (\w+) is called (\w+)\.", text))
    asked = re.search(r"What is my (\w+) called\?$", text)
    name = told.get(asked.group(1), "unknown") if asked else "noted"
    warm = "cache_prompt" not in body
    before = last
    if warm and told:
        last = list(told.values())[-1]
    if fault == "leaky" and warm and before not in told.values():
        return f"It is {before}."
    if fault == "forgets" and warm and asked:
        return "I do not know."
    return f"It is {name}." + (f" {random.random()}" if fault == "noisy" else "")


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if fault == "refuses":
            self.send_response(400)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        event = json.dumps({"choices": [{"delta": {"content": answer_of(body)}}]})
        out = f"data: {event}\n\ndata: [DONE]\n\n".encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(out)))
        self.end_headers()
        self.wfile.write(out)


server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print(f"http://127.0.0.1:{server.server_port}", flush=True)
server.serve_forever()
