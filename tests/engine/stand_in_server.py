"""What `helpers.serving.server` needs of vLLM's server, at once: `python -m stand_in_server --port P`, with a child."""

import argparse
import http.server
import os
import subprocess
import sys


class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        if os.environ.get("STAND_IN_SILENT"):
            self.send_response(503)
            return self.end_headers()
        right = self.headers["Authorization"] == f"Bearer {os.environ['VLLM_API_KEY']}"
        self.send_response(200 if right else 401)
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *_):
        pass


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int)
    parser.add_argument("--dtype")
    given, _ = parser.parse_known_args()
    if given.dtype == "float99":
        parser.error("argument --dtype: invalid choice: 'float99' (choose from auto, float32)")
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    http.server.ThreadingHTTPServer(("127.0.0.1", given.port), Handler).serve_forever()
