"""No request without the key, whatever its path: vLLM's own check leaves /invocations, which answers prompts, open."""

import os
import secrets


class KeyGuard:
    """Middleware for vLLM's --middleware; the key is the one in VLLM_API_KEY."""

    def __init__(self, app):
        self.app, self.wanted = app, f"Bearer {os.environ['VLLM_API_KEY']}".encode()

    async def __call__(self, scope, receive, send):
        given = dict(scope.get("headers", ())).get(b"authorization", b"")
        if scope["type"] == "lifespan" or secrets.compare_digest(given, self.wanted):
            await self.app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        else:
            await send({"type": "http.response.start", "status": 401, "headers": [(b"content-type", b"text/plain")]})
            await send({"type": "http.response.body", "body": b"a key is needed"})
