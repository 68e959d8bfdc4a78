"""A blob store in memory."""

from __future__ import annotations

from topics.host.blob import check_key
from topics.host.fs import Buffer


class MemoryBlobs:
    def __init__(self) -> None:
        self._blobs: dict[str, bytes] = {}

    def put(self, key: str, data: Buffer) -> bool:
        check_key(key)
        if key in self._blobs:
            return False
        self._blobs[key] = bytes(data)
        return True

    def get_range(self, key: str, offset: int, size: int) -> bytes:
        data = self._get(key)
        if offset + size > len(data):
            raise EOFError(f"{key} ends at byte {len(data)}, before byte {offset + size}")
        return data[offset : offset + size]

    def size(self, key: str) -> int:
        return len(self._get(key))

    def delete(self, key: str) -> None:
        check_key(key)
        self._blobs.pop(key, None)

    def list(self, prefix: str = "") -> list[str]:
        return sorted(key for key in self._blobs if key.startswith(prefix))

    def exists(self, key: str) -> bool:
        check_key(key)
        return key in self._blobs

    def _get(self, key: str) -> bytes:
        check_key(key)
        try:
            return self._blobs[key]
        except KeyError:
            raise FileNotFoundError(f"no blob has the key {key!r}") from None
