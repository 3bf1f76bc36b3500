"""Which engines are asked and which are only known, as they come, go and are lost."""

from stand_ins import StandInBackend

from workhorse.serve.backend import Roster, Served


def served(on: str) -> Served:
    return Served("horse", StandInBackend("http://127.0.0.1:1"), on=on)


def test_who_is_set_aside_is_known_and_not_asked_until_it_is_put_again() -> None:
    one, two = served("GPU 0"), served("GPU 1")
    roster = Roster((one, two))
    roster.set_aside(one)
    assert (roster.served, roster.known) == ((two,), (one, two))
    assert roster.serving("horse") == (two,)
    again = served("GPU 0")
    roster.put(again, instead_of=one)
    assert roster.served == roster.known == (again, two), "in its own place"
    roster.set_aside(two)
    roster.drop(two)
    assert roster.served == roster.known == (again,)


def test_another_put_in_brings_nobody_back() -> None:
    one, two = served("GPU 0"), served("GPU 1")
    roster = Roster((one,))
    roster.set_aside(one)
    roster.put(two)
    assert (roster.served, roster.known) == ((two,), (one, two))


def test_an_engine_is_named_by_its_place_where_there_are_several() -> None:
    assert (served("GPU 1").name, served("").name) == ("horse (GPU 1)", "horse")
