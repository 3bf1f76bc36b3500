"""Who fetches from whom: the head gives a file to a few, they give it on."""

import pytest

from workhorse.fleet.weights_turns import GIVES_AT_ONCE, LEASE_S, WAIT_S, Turn, Turns

FILE = "ab" * 32


def peer(node: int) -> str:
    return f"http://10.0.0.{node}:8090/weights/{FILE}"


@pytest.mark.parametrize("nodes", [1, 2, 7, 40, 200])
def test_many_nodes_are_served_by_one_another(nodes: int) -> None:
    """All transfers of a round take as long: who has the file doubles and more each round."""
    turns, waiting, rounds = Turns("origin"), list(range(nodes)), 0
    from_head = 0
    while waiting:
        rounds += 1
        fetching = {node: turn.url for node in waiting if (turn := ask(turns, node, rounds)).url}
        gives = [list(fetching.values()).count(url) for url in set(fetching.values())]
        assert max(gives) <= GIVES_AT_ONCE
        from_head += list(fetching.values()).count("origin")
        for node in fetching:
            turns.done(FILE, str(node), peer(node))
        waiting = [node for node in waiting if node not in fetching]
    # 1 has it, then 3, 9, 27, 81 …
    assert 3 ** (rounds - 1) < nodes + 1 <= 3**rounds
    assert from_head <= GIVES_AT_ONCE * rounds


def ask(turns: Turns, node: int, now_s: float) -> Turn:
    return turns.ask(FILE, str(node), now_s)


def test_who_has_to_wait_is_told_how_long() -> None:
    turns = Turns("origin")
    assert [ask(turns, node, 0.0) for node in range(3)] == [
        Turn("origin"),
        Turn("origin"),
        Turn(None, WAIT_S),
    ]


def test_a_node_that_died_gives_its_place_up() -> None:
    turns = Turns("origin")
    ask(turns, 1, 0.0)
    ask(turns, 2, 0.0)
    turns.keep(FILE, "2", 7, LEASE_S)
    assert ask(turns, 3, LEASE_S).url is None, "both may still fetch"
    assert ask(turns, 3, LEASE_S + 1).url == "origin", "the first has said nothing"
    assert {(one.node, one.done_bytes) for one in turns.fetching(LEASE_S + 1)} == {
        ("2", 7),
        ("3", 0),
    }


def test_a_node_that_asks_again_takes_one_place() -> None:
    turns = Turns("origin")
    for _ in range(5):
        ask(turns, 1, 0.0)
    assert ask(turns, 2, 0.0).url == "origin"


def test_a_holder_that_failed_is_dropped_and_the_head_never() -> None:
    turns = Turns("origin")
    turns.done(FILE, "1", peer(1))
    assert ask(turns, 2, 0.0).url == peer(1)
    assert turns.ask(FILE, "2", 0.0, failed=peer(1)).url == "origin"
    assert turns.holders(FILE) == ()
    assert turns.ask(FILE, "2", 0.0, failed="origin").url == "origin", "there is nobody else"


def test_files_do_not_mix() -> None:
    turns = Turns("origin")
    turns.done("cd" * 32, "1", peer(1))
    assert ask(turns, 2, 0.0).url == "origin"
