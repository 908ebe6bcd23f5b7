"""What runs inside the server's process; nothing here imports helpers, which would change that process's settings."""
