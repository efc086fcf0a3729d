"""NATS JetStream keeps the contract of outlast."""

from collections.abc import Iterable

import nats
from nats_server import NatsServer, shared

from outlast_contract import Harness, contract_suite


class NatsHarness(Harness):
    """A server of the tests' own, and a look at what it holds."""

    @property
    def url(self) -> str:  # type: ignore[override]
        return shared().url

    async def start_server(self) -> NatsServer:
        return NatsServer()

    async def raw(self, namespace: str) -> Iterable[tuple[str, bytes]]:
        async with await nats.connect(shared().address) as client:
            js = client.jetstream()
            names = (await js.stream_info("KV_tests", subjects_filter=">")).state.subjects or {}
            found = [await js.get_msg("KV_tests", subject=name) for name in names]
        return [(str(one.subject), one.data or b"") for one in found]


TestContract = contract_suite(NatsHarness)
