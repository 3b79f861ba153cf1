"""Addresses under which a server in another network may be reached."""

from __future__ import annotations

import pytest

from gputop_llm.sources.own_network import reachable
from gputop_llm.sources.procfs import ProcFs
from tests.support.fake_proc import FakeProc

# As the kernel writes them: each table once more for the local routes; the broadcast address is no host.
FIB = """Main:
  +-- 0.0.0.0/0 3 0 5
     |-- 0.0.0.0
        /0 universe UNICAST
     +-- 172.17.0.0/16 2 0 2
        |-- 172.17.0.2
           /32 host LOCAL
        |-- 172.17.255.255
           /32 link BROADCAST
     +-- 127.0.0.0/8 2 0 2
        |-- 127.0.0.1
           /32 host LOCAL
Local:
     |-- 172.17.0.2
        /32 host LOCAL
"""
INET6 = """00000000000000000000000000000001 01 80 10 80       lo
fd000000000000000000000000000002 02 40 00 80     eth0
fe800000000000000042acfffe110002 02 40 20 80     eth0
"""
LOOPBACK, EVERYWHERE, ONE = "0100007F", "00000000", "020011AC"
EVERYWHERE_6 = "0" * 32


@pytest.mark.parametrize(
    ("listen", "places"),
    [
        ([(LOOPBACK, 8000, 901)], []),
        ([(EVERYWHERE, 8000, 901)], [("172.17.0.2", 8000)]),
        ([(ONE, 8000, 901)], [("172.17.0.2", 8000)]),
        ([(EVERYWHERE_6, 8000, 901)], [("172.17.0.2", 8000), ("fd00::2", 8000)]),
        ([(LOOPBACK, 41000, 901), (EVERYWHERE, 8000, 902)], [("172.17.0.2", 8000)]),
    ],
)
def test_a_wildcard_stands_for_the_addresses_that_others_can_use(tmp_path, listen, places):
    proc = FakeProc(tmp_path)
    proc.add(10, ["vllm", "serve", "m"], listen=listen)
    proc.write("10/net/fib_trie", FIB)
    proc.write("10/net/if_inet6", INET6)

    assert reachable(ProcFs(proc.root), 10) == places
