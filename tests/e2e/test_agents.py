"""The programs inside the wheels claude-agent-sdk (Claude Code) and openai-codex-cli-bin (Codex) against the
server, with nothing set but its address: turns with a tool, a new process each turn, and kill -9 of the
server in the middle. Nearly all of each prompt is found."""
import http.server
import json
import os
import subprocess
import threading
import urllib.request

from scripted_model import AGENTS, make_talker
from serve_client import SAVING, Server
from tap import PATIENCE, check, end, equal, scratch, skip

tmp = scratch("agents")


class Recorder(http.server.ThreadingHTTPServer):
    """Hands requests on to a server at the same address, and keeps what their answers say about the prompt:
    (path, status, found share, prompt tokens, the answer)."""
    daemon_threads = True

    def __init__(self):
        self.seen, self.target = [], None
        super().__init__(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def take(self):
        got, self.seen = self.seen, []
        return got


class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        to = urllib.request.Request(f"http://127.0.0.1:{self.server.target.port}{self.path}", body,
                                    {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(to, timeout=PATIENCE) as r:
                status, kind, data = r.status, r.headers["Content-Type"], r.read()
        except urllib.error.HTTPError as e:
            status, kind, data = e.code, e.headers["Content-Type"], e.read()
        self.server.target.post("/v1/cache/flush", {})  # the forced plan takes what is committed
        timings = {}
        for line in data.decode().split("\n"):
            e = json.loads(line[6:]) if line.startswith("data: {") else {}
            timings = e.get("timings") or (e.get("response") or {}).get("timings") or timings
        known = timings.get("device_tokens", 0) + timings.get("restored_tokens", 0)
        total = known + timings.get("prefilled_tokens", 0)
        self.server.seen.append((self.path.split("?")[0], status, known / max(total, 1), total, data.decode()))
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_HEAD(self):
        self.send_response(404)
        self.end_headers()

    def log_message(self, *args):
        pass


def call(name, arguments):
    return [f'<tool_call>\n{{"name": "{name}", ', f'"arguments": {json.dumps(arguments)}}}\n</tool_call>']


class Agent:
    def __init__(self, name, module, path, tool):
        self.name, self.program = name, None
        try:
            where = subprocess.run([VENV, "-c", f"import {module}; print({module}.__path__[0])"], capture_output=True,
                                   check=True).stdout.decode().strip()
            self.program = os.path.join(where, path)
        except (OSError, subprocess.CalledProcessError):
            return
        self.home = os.path.join(tmp, name)
        self.work = os.path.join(self.home, "work")
        os.makedirs(self.work)
        model = make_talker(os.path.join(self.home, "model"), AGENTS, {
            "<|ask|>": tool, "<|told|>": ["It is 42."], "<|plain|>": ["A title"],
            "<|search|>": call("ToolSearch", {"query": "select:WebFetch"})})
        self.start = lambda: Server(model, *SAVING, "--store", os.path.join(self.home, "store"))
        self.recorder = Recorder()
        self.recorder.target = self.start()

    def run(self, *arguments, **env):
        p = subprocess.run([self.program, *arguments], cwd=self.work, stdin=subprocess.DEVNULL, capture_output=True,
                           env={"PATH": os.environ["PATH"], "HOME": self.home, **env}, timeout=PATIENCE)
        return p.stdout.decode() + p.stderr.decode()

    def turns(self):
        """Six turns. Returns the shares of the prompts, without the first one, that were found."""
        said, seen = [], []
        for i in range(6):
            said.append("It is 42." in self.ask(f"What is six times seven? Turn {i}.", i > 0))
            seen += self.recorder.take()
            if i == 2:
                self.recorder.target.kill()
                self.recorder.target = self.start()
        equal(f"{self.name}: each turn calls a tool and answers", (said, [s[1] for s in seen]), ([True] * 6, [200] * 12))
        shares = [s[2] for s in seen[1:]]
        check(f"{self.name}: 99 % of each prompt were found, in new processes and after kill -9", min(shares) >= 0.99,
              [(round(s[2], 4), s[3]) for s in seen])


class ClaudeCode(Agent):
    def __init__(self):
        super().__init__("claude", "claude_agent_sdk", "_bundled/claude", call("Bash", {"command": "echo $((6*7))"}))

    def ask(self, text, goes_on=False):
        return self.run("-p", text, "--allowedTools", "Bash", *(["--continue"] if goes_on else []),
                        ANTHROPIC_BASE_URL=f"http://127.0.0.1:{self.recorder.server_port}", ANTHROPIC_AUTH_TOKEN="none",
                        CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC="1")


class Codex(Agent):
    def __init__(self):
        super().__init__("codex", "codex_cli_bin", "bin/codex", call("exec", {"input": "text(6*7)"}))

    def ask(self, text, goes_on=False):
        where = f'{{name="h",base_url="http://127.0.0.1:{self.recorder.server_port}/v1",wire_api="responses"}}'
        return self.run("exec", *(["resume", "--last"] if goes_on else []), "-c", 'model_provider="h"', "-c",
                        "model_providers.h=" + where, "--skip-git-repo-check",
                        "--dangerously-bypass-approvals-and-sandbox", text, CODEX_HOME=self.home)


VENV = os.path.abspath(".venv/bin/python")
for kind in (ClaudeCode, Codex):
    agent = kind()
    if agent.program is None:
        skip(f"{agent.name}: six turns", "the wheel is not installed (tools/setup.sh --clients)")
        continue
    agent.turns()
    agent.ask("Please multiply six by seven for me, in another session.")
    first = agent.recorder.take()[0]
    check(f"{agent.name}: a new session finds what the old one began with", first[2] >= 0.95, first[2:4])
    if kind is ClaudeCode:
        agent.ask("LOOK FOR TOOLS")
        seen = agent.recorder.take()
        equal("claude: a tool that is found later is declared where it was found", [s[1] for s in seen], [200, 200, 200])
        check("claude: and the beginning of the prompt stays", min(s[2] for s in seen[1:]) >= 0.85,
              [(round(s[2], 4), s[3]) for s in seen])
    agent.recorder.target.stop()
end()
