"""Facts from one qdrant folder to another with qdrant's client, as mem0 itself would write them.

python qdrant_copy.py SOURCE TARGET COLLECTION DIMENSIONS
"""

from __future__ import annotations

import sys

from qdrant_client import QdrantClient
from qdrant_client.models import Distance, PointStruct, VectorParams

SOME = 1000


def main(source: str, target: str, name: str, size: int) -> None:
    here, there = QdrantClient(path=source), QdrantClient(path=target)
    there.create_collection(name, VectorParams(size=size, distance=Distance.COSINE))
    after = None
    while True:
        points, after = here.scroll(name, limit=SOME, offset=after, with_vectors=True)
        copied = [PointStruct(id=one.id, vector=one.vector, payload=one.payload) for one in points]
        there.upsert(name, copied)
        if after is None:
            break
    here.close()
    there.close()


main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))
