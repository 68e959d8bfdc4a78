"""The `/v0` wire: HTTP/1.1, HTTP/2 and WebSocket in, the broker's use cases behind it."""
