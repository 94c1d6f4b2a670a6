"""Messages: they arrive unchanged whatever the carrier does, and bad input is an error."""

import array
import copy
import pickle
import threading

import pytest
from conftest import text

import narrows


def message(i: int) -> bytes:
    return b'{"sensor": "north-east", "number": %d, "celsius": %d.%d}' % (i, 15 + i % 9, i * 7919 % 10)


def deliver(source: narrows.MessageEnd, target: narrows.MessageEnd, unit: bytes) -> list[bytes]:
    """Passes a unit and all that is sent because of it; returns the messages at the target."""
    got = target.receive(unit)
    for _ in range(20):
        answers = [u for u in iter(target.pending, None)]
        for answer in answers:
            assert source.receive(answer) == []
        again = [u for u in iter(source.pending, None)]
        for unit in again:
            got += target.receive(unit)
        if not answers and not again:
            return got
    raise AssertionError("the ends never stop talking")


@pytest.mark.parametrize("borders", [False, True])
@pytest.mark.parametrize("policy", ["messages", "fixed:lz4:link", "fixed:zstd:level=1", "fixed:store"])
def test_both_directions(borders: bool, policy: str) -> None:
    here, there = (narrows.MessageEnd(policy, borders=borders) for _ in range(2))
    for i in range(300):
        source, target = (here, there) if i % 3 else (there, here)
        assert deliver(source, target, source.send(message(i))) == [message(i)]
        target.answered() if target.last_seq is not None else None
    sent, received = here.sent, there.received
    assert (sent.messages, sent.raw_bytes) == (200, sum(len(message(i)) for i in range(300) if i % 3))
    assert (sent.messages, sent.raw_bytes, sent.wire_bytes) == (received.messages, received.raw_bytes, received.wire_bytes)
    assert sum(sent.methods.values()) == 200
    assert sent.ratio == pytest.approx(sent.raw_bytes / sent.wire_bytes)
    if policy == "fixed:lz4:link":
        assert sent.ratio > 2 and here.last_method == "lz4:link"


def test_a_stream_may_be_cut_anywhere() -> None:
    here, there = narrows.MessageEnd(), narrows.MessageEnd()
    messages = [message(i) * (i % 5) for i in range(60)]
    wire = b"".join(here.send(m) for m in messages)
    for piece in (1, 2, 7, 1000, len(wire)):
        there = narrows.MessageEnd()
        got = [m for at in range(0, len(wire), piece) for m in there.receive(wire[at : at + piece])]
        assert got == messages


@pytest.mark.parametrize("length", [0, 1, 2, 65_534, narrows.MESSAGE_MAX])
def test_lengths(length: int) -> None:
    for borders in (False, True):
        here, there = (narrows.MessageEnd(borders=borders) for _ in range(2))
        for _ in range(3):
            assert deliver(here, there, here.send(bytes(length))) == [bytes(length)]


def test_one_above_the_maximum_is_refused_and_the_flow_goes_on() -> None:
    here, there = (narrows.MessageEnd(borders=True, message_max=100) for _ in range(2))
    for i in range(5):
        with pytest.raises(narrows.LimitError):
            here.send(bytes(101))
        assert deliver(here, there, here.send(b"x" * 100)) == [b"x" * 100]
    with pytest.raises(narrows.LimitError):
        narrows.MessageEnd().send(bytes(narrows.MESSAGE_MAX + 1))
    for wrong in (0, narrows.MESSAGE_MAX + 1):
        with pytest.raises(narrows.MisuseError):
            narrows.MessageEnd(message_max=wrong)


def test_buffers_of_every_type() -> None:
    here, there = (narrows.MessageEnd(borders=True) for _ in range(2))
    numbers = array.array("i", range(20))
    for buffer in (bytearray(b"abc"), memoryview(b"abcd")[1:3], numbers, memoryview(numbers), bytearray(), memoryview(b"")):
        assert deliver(here, there, here.send(buffer)) == [bytes(buffer)]
    unit = here.send(b"last")
    assert there.receive_unit(memoryview(bytearray(unit))) == b"last"
    with pytest.raises(BufferError):
        here.send(memoryview(b"abcdef")[::2])
    for wrong in ("text", 7, None):
        with pytest.raises(TypeError):
            here.send(wrong)  # type: ignore[arg-type]


def test_a_message_that_was_damaged_comes_again() -> None:
    here, there = (narrows.MessageEnd("fixed:lz4:link", borders=True) for _ in range(2))
    for i in range(10):
        assert deliver(here, there, here.send(message(i))) == [message(i)]
    unit = bytearray(here.send(message(10)))
    unit[-1] ^= 1
    assert deliver(here, there, unit) == [message(10)]
    assert there.undecodable == 1 and here.gaps == 0
    assert deliver(here, there, here.send(message(11))) == [message(11)]


def test_history_out_of_step_is_noticed_and_no_wrong_byte_comes() -> None:
    here, there = (narrows.MessageEnd("fixed:lz4:link", borders=True) for _ in range(2))
    for i in range(5):
        deliver(here, there, here.send(message(i)))
    here.send(message(5))  # Lost.
    assert there.receive_unit(here.send(message(6))) is None
    answer = there.pending()
    assert answer is not None
    assert here.receive(answer) == []
    with pytest.raises(narrows.MisuseError):
        here.send(message(7))
    again = [there.receive_unit(unit) for unit in iter(here.pending, None)]
    assert again == [message(5), message(6)]
    assert deliver(here, there, here.send(message(7))) == [message(7)]


def test_a_reconnection_begins_anew() -> None:
    here, there = (narrows.MessageEnd("fixed:lz4:link", borders=True) for _ in range(2))
    for i in range(5):
        deliver(here, there, here.send(message(i)))
    here.reconnect()
    there = narrows.MessageEnd("fixed:lz4:link", borders=True)
    assert deliver(here, there, here.send(message(6))) == [message(6)]


def test_flipped_bits_never_pass_as_a_message(chance) -> None:
    here = narrows.MessageEncoder("fixed:lz4:link", check_all=True, epoch=1)
    wire = [here.encode(message(i)) for i in range(8)]
    known = {message(i) for i in range(8)}
    whole = b"".join(wire)
    for _ in range(400):
        flipped = bytearray(whole)
        flipped[chance.randrange(len(flipped))] ^= 1 << chance.randrange(8)
        there = narrows.MessageDecoder(check_all=True)
        try:
            got = there.decode(flipped)
            while True:
                got += there.decode(b"")
                break
        except narrows.NarrowsError:
            got = []
        assert set(got) <= known


def test_hostile_bytes_raise_errors_of_this_module_only(chance) -> None:
    for i in range(2000):
        data = chance.randbytes(chance.randrange(1, 60))
        for end in (narrows.MessageEnd(borders=i % 2 == 0), narrows.MessageDecoder(borders=i % 2 == 0)):
            receive = end.receive if isinstance(end, narrows.MessageEnd) else end.decode
            try:
                receive(data)
            except narrows.NarrowsError:
                pass


def test_messages_before_a_fault_are_given_first() -> None:
    here, there = narrows.MessageEncoder(epoch=1), narrows.MessageDecoder()
    first, second = here.encode(b"first"), bytearray(here.encode(b"second" * 20))
    second[-1] ^= 0xFF
    assert there.decode(first + second) == [b"first"]
    with pytest.raises(narrows.CorruptError) as caught:
        for _ in range(3):
            there.decode(here.encode(b"third"))
    assert isinstance(caught.value, OSError) and isinstance(caught.value, narrows.NarrowsError)


def test_dictionaries(chance) -> None:
    samples = [text(chance, 300) for _ in range(200)]
    dictionary = narrows.train(samples)
    assert dictionary is not None and len(dictionary) == len(dictionary.content)
    same = narrows.Dictionary(dictionary.content)
    assert same == dictionary and hash(same) == hash(dictionary) and same.digest == dictionary.digest
    assert narrows.train([chance.randbytes(300) for _ in range(200)]) is None
    assert narrows.train([]) is None
    assert narrows.train(samples, expected=3) is None
    for wrong in (b"", bytes(63), bytes(narrows.DICTIONARY_MAX + 1)):
        with pytest.raises(ValueError):
            narrows.Dictionary(wrong)

    here, there = (narrows.MessageEnd("fixed:zstd:level=1", borders=True) for _ in range(2))
    assert here.offer(dictionary)
    for sample in samples[:5]:
        assert deliver(here, there, here.send(sample)) == [sample]
    assert here.dictionary == dictionary
    assert any(name.endswith("+dictionary") for name in here.sent.methods)


def test_a_dictionary_that_the_peer_lacks_is_asked_for(chance) -> None:
    samples = [text(chance, 300) for _ in range(100)]
    dictionary = narrows.train(samples)
    assert dictionary is not None
    here = narrows.MessageEnd("fixed:zstd:level=1", borders=True)
    there = narrows.MessageEnd(borders=True)
    assert here.offer(dictionary, ask=True)
    for sample in samples[:10]:
        assert deliver(here, there, here.send(sample)) == [sample]
    assert here.dictionary == dictionary
    # An end that has the dictionary need not be sent it.
    here, there = narrows.MessageEnd("fixed:zstd:level=1", borders=True), narrows.MessageEnd(borders=True, known=[dictionary])
    assert here.offer(dictionary, ask=True)
    for sample in samples[:10]:
        assert deliver(here, there, here.send(sample)) == [sample]
    assert here.sent.wire_bytes < len(dictionary)


def test_unknown_dictionary_of_a_topic_drops_the_message(chance) -> None:
    samples = [text(chance, 300) for _ in range(100)]
    dictionary = narrows.train(samples)
    assert dictionary is not None
    writer = narrows.MessageEncoder("fixed:zstd:level=1", delivery="fanout", borders=True)
    assert writer.offer(dictionary)
    announcement = writer.announce() and writer.announce()
    unit = writer.encode(samples[0])
    late, knowing = (narrows.MessageDecoder(delivery="fanout", borders=True) for _ in range(2))
    assert late.decode(unit) == [] and late.undecodable == 1
    assert knowing.decode(announcement) == []
    assert knowing.decode(unit) == [samples[0]]
    assert late.decode(announcement) == [] and late.decode(writer.encode(samples[1])) == [samples[1]]


def test_seed_and_training(chance) -> None:
    samples = [text(chance, 400) for _ in range(300)]
    seed = narrows.Dictionary(b"".join(samples[:10]))
    here, there = (narrows.MessageEnd("fixed:lz4:link", borders=True, seed=seed) for _ in range(2))
    plain = narrows.MessageEnd("fixed:lz4:link", borders=True)
    assert len(here.send(samples[20])) < len(plain.send(samples[20]))

    here, there = (narrows.MessageEnd("fixed:zstd:level=1", borders=True) for _ in range(2))
    here.sample()
    training = None
    # The samples differ only in a number, so that a dictionary pays after a hundred.
    form = bytes(chance.randrange(32, 127) for _ in range(600))
    samples = [form[:300] + b"%d" % i + form[300:] for i in range(200)]
    for sample in samples:
        assert deliver(here, there, here.send(sample)) == [sample]
        training = training or here.training()
    assert training is not None
    results: list[narrows.Adoption] = []
    thread = threading.Thread(target=lambda: results.append(training.run()))
    thread.start()
    thread.join()
    assert results[0] and here.trained(results[0])
    for sample in samples[:5]:
        assert deliver(here, there, here.send(sample)) == [sample]
    assert here.dictionary is not None


def test_private_messages_go_as_they_are() -> None:
    here, there = (narrows.MessageEnd("fixed:lz4:link", borders=True) for _ in range(2))
    deliver(here, there, here.send(message(0) * 10))
    unit = here.send_private(message(0) * 10)
    assert len(unit) > len(message(0)) * 10
    assert deliver(here, there, unit) == [message(0) * 10]


def test_wrong_arguments_are_told() -> None:
    for arguments in (
        {"policy": "best"},
        {"policy": "replay:FILE"},
        {"delivery": "sometimes"},
        {"history": 7},
        {"delivery": "unordered", "borders": False},
        {"slots": 9},
    ):
        with pytest.raises(narrows.MisuseError):
            narrows.MessageEnd(**arguments)  # type: ignore[arg-type]
    with pytest.raises(narrows.MisuseError):
        narrows.MessageEnd().receive_unit(b"x")
    with pytest.raises(narrows.MisuseError):
        narrows.MessageEnd().answered()
    with pytest.raises(narrows.MisuseError):
        narrows.MessageEnd().announce()
    with pytest.raises(narrows.TruncatedError):
        narrows.MessageEnd(borders=True).receive_unit(b"")


def test_what_an_end_is_cannot_be_copied() -> None:
    for thing in (narrows.MessageEnd(), narrows.MessageEncoder(), narrows.MessageDecoder()):
        with pytest.raises(TypeError):
            pickle.dumps(thing)
        with pytest.raises(TypeError):
            copy.copy(thing)


def test_two_threads_on_one_end_take_turns() -> None:
    here, there = (narrows.MessageEnd("fixed:lz4:link") for _ in range(2))
    wire: list[bytes] = []
    turn = threading.Lock()

    def send(of: int) -> None:
        for i in range(500):
            with turn:  # The order of the bytes is the caller's affair.
                wire.append(here.send(b"%d of %d" % (i, of)))

    threads = [threading.Thread(target=send, args=(of,)) for of in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    got = there.receive(b"".join(wire))
    assert sorted(got) == sorted(b"%d of %d" % (i, of) for i in range(500) for of in range(4))
