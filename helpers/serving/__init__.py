"""vLLM's OpenAI-compatible server beside a notebook: its life, a client that keeps it busy, and the comparison."""
