"""Calls through the daemon of a node, and services that a process provides.

    import copyrpc

    with copyrpc.Client() as client:
        answer = client.call(rank=1, service="metadata", method="stat", body=b"/etc/hostname")

    async def many():
        async with copyrpc.AsyncClient() as client:
            return await asyncio.gather(*(client.call(rank, 17, 1, b"hello") for rank in range(8)))

    with copyrpc.Provider("metadata") as provider:
        provider.serve(lambda request: b"hello, " + request.body)

    async def look(request):
        await asyncio.sleep(1)
        return b"hello, " + request.body

    with copyrpc.Provider("slow") as provider:
        provider.serve(look)

    with copyrpc.BulkClient() as client:
        region = client.region(1 << 20)
        region.write(0, page)
        client.call_bulk(1, "store", "put", [region.slice()], b"page 7")

Services and methods have names, or numbers. Calls that wait let other threads of Python run. A body is bytes, or has
the buffer protocol. A wrong argument raises ``TypeError``, ``ValueError`` or ``OverflowError``, and nothing is sent.
"""

from ._arguments import method as method_number
from ._arguments import service as service_number
from ._async import AsyncClient
from ._base import Error, ServiceError
from ._client import Client
from ._library import HERE, Status
from ._provider import Provider, Request
from ._version import __version__
from .bulk import BulkClient, BulkProvider, Move, Region, Slice, Work

__all__ = [
    "AsyncClient", "BulkClient", "BulkProvider", "Client", "Error", "HERE", "Move", "Provider", "Region", "Request",
    "ServiceError", "Slice", "Status", "Work", "__version__", "method_number", "service_number",
]
