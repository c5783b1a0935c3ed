from __future__ import annotations

import socket
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, suppress

import pytest

from hpcml_client.client import Client, Ranks
from hpcml_client.rendezvous import Rendezvous, RendezvousError, meet


def _environment(name: str = "a run") -> dict[str, str]:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(found.getsockname()[1]), "HPCML_RUN_ID": name}


def _client(rank: int, count: int) -> Client:
    return Client(ranks=Ranks(rank, count, rank))


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as made:
        yield made


def _meet_all(pool: ThreadPoolExecutor, count: int) -> list[Rendezvous]:
    environment = _environment()
    # the last first: whoever comes before there is somebody to meet waits
    coming: list[Future[Rendezvous]] = [
        pool.submit(meet, _client(rank, count), environment) for rank in reversed(range(count))
    ]
    return [found.result(timeout=300) for found in reversed(coming)]


def test_all_ranks_learn_the_same_addresses_in_the_order_of_ranks(pool: ThreadPoolExecutor) -> None:
    met = _meet_all(pool, 3)

    assert met[0].addresses == met[1].addresses == met[2].addresses
    assert len(set(met[0].addresses)) == 3
    for address in met[0].addresses:
        host, _, port = address.partition(":")
        with socket.create_server((host, int(port))):
            pass  # it is free
    for one in met:
        one.close()


def test_the_first_goes_last(pool: ThreadPoolExecutor) -> None:
    first, *others = _meet_all(pool, 3)
    waiting = [pool.submit(one.wait_until_dismissed) for one in others]
    assert not any(one.done() for one in waiting)

    first.dismiss()

    for one in waiting:
        one.result(timeout=300)


def test_a_first_rank_that_goes_without_a_word_is_noticed(pool: ThreadPoolExecutor) -> None:
    first, second = _meet_all(pool, 2)

    first.close()

    second.wait_until_dismissed()


@pytest.mark.parametrize(
    "says", [b"GET / HTTP/1.0\r\n\r\n", b'{"run": "a run"}\n', b'{"run": "a run", "rank": 0}\n', b""]
)
def test_a_stranger_does_not_end_the_meeting(pool: ThreadPoolExecutor, says: bytes) -> None:
    environment = _environment()
    first = pool.submit(meet, _client(0, 2), environment)
    address = (environment["MASTER_ADDR"], int(environment["MASTER_PORT"]))
    while True:
        with suppress(ConnectionRefusedError), socket.create_connection(address) as stranger:
            stranger.sendall(says)
            break

    with closing(meet(_client(1, 2), environment)) as second, closing(first.result(timeout=300)) as one:
        assert one.addresses == second.addresses


def test_a_rank_of_another_run_is_turned_away(pool: ThreadPoolExecutor) -> None:
    environment = _environment()
    first = pool.submit(meet, _client(0, 2), environment)

    with pytest.raises(RendezvousError, match="the first rank hung up"):
        meet(_client(1, 2), {**environment, "HPCML_RUN_ID": "another"})

    with closing(meet(_client(1, 2), environment)) as second, closing(first.result(timeout=300)) as one:
        assert one.addresses == second.addresses


def test_whoever_waits_in_vain_says_for_whom() -> None:
    with pytest.raises(RendezvousError, match=r"rank 0 of 2 met nobody at 127.0.0.1:\d+: "):
        meet(_client(0, 2), _environment(), patience_s=0.01)
    with pytest.raises(
        RendezvousError, match=r"rank 1 of 2 met nobody at 127.0.0.1:\d+: the first rank did not listen"
    ):
        meet(_client(1, 2), _environment(), patience_s=0.01)


def test_without_a_place_to_meet_it_says_how_to_get_one() -> None:
    with pytest.raises(RendezvousError, match="MASTER_ADDR and MASTER_PORT must be in the environment"):
        meet(_client(0, 2), {})
