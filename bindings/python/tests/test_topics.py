"""Topics: readers that join at any time, and the announcements that they get."""

import pytest

import narrows


def message(i: int) -> bytes:
    return b'{"topic": "plant/press-%d", "pressure": %d.%d, "unit": "bar", "sequence": %d, "quality": "good"}' % (
        i % 17,
        i * 7919 % 40,
        i * 31 % 1000,
        i,
    )


def test_every_reader_gets_every_message() -> None:
    writer, readers = narrows.TopicWriter(), [narrows.TopicReader(), narrows.TopicReader()]
    assert writer.wakeup_in is None
    announcement = writer.announcement()
    assert announcement is not None and writer.announcement() is None
    assert readers[0].receive(announcement) == []
    for i in range(300):
        unit = writer.send(message(i))
        for reader in readers:
            assert reader.receive(unit) == [message(i)]
    assert writer.wakeup_in is not None and 0 <= writer.wakeup_in <= 10
    assert (writer.sent.messages, writer.sent.raw_bytes) == (300, sum(len(message(i)) for i in range(300)))
    assert readers[0].received.wire_bytes == writer.sent.wire_bytes
    assert readers[0].waiting == readers[0].unannounced == readers[0].damaged == 0
    assert readers[0].wakeup_in is None and readers[0].on_time() == []


def test_dictionaries_are_sampled_and_announced() -> None:
    writer = narrows.TopicWriter()
    writer.sample()
    assert writer.training() is None
    for i in range(500):
        writer.send(message(i))
    training = writer.training()
    assert training is not None
    adoption = training.run()
    assert adoption and writer.trained(adoption)
    assert writer.dictionary is None, "not before it was announced twice"
    assert writer.wakeup_in is not None and writer.wakeup_in <= 1
    writer.reader_came()
    assert writer.offer(narrows.Dictionary(b"".join(message(i) for i in range(50))))


def test_what_needs_a_dictionary_waits_for_it_and_what_comes_behind_it_too() -> None:
    dictionary = narrows.Dictionary(b"".join(message(i) for i in range(50)))
    writer = narrows.MessageEncoder("fixed:zstd:level=1", delivery="fanout", borders=True)
    writer.offer(dictionary)
    writer.announce()
    announcement = writer.announce()
    reader = narrows.TopicReader()
    units = [writer.encode(message(i)) for i in range(20)]
    for unit in units:
        assert reader.receive(unit) == []
    assert reader.waiting == 20 and reader.wakeup_in is not None and reader.wakeup_in <= 25
    assert reader.receive(announcement) == [message(i) for i in range(20)]
    assert reader.receive(writer.encode(message(20))) == [message(20)]
    # Waiting messages are returned even if the rest of the unit that released them is bad.
    reader = narrows.TopicReader()
    for unit in units:
        reader.receive(unit)
    assert reader.receive(announcement + bytes(70_000)) == [message(i) for i in range(20)]
    assert reader.damaged == 1 and reader.waiting == 0


def test_bad_units_are_told_and_the_next_one_is_read() -> None:
    writer, reader = narrows.TopicWriter(check_all=True), narrows.TopicReader(check_all=True)
    for bad in (b"\0", b"\xff" * 9, b"\xc1\x20"):
        with pytest.raises(narrows.NarrowsError):
            reader.receive(bad)
    unit = bytearray(writer.send(message(1)))
    unit[-1] ^= 1
    with pytest.raises(narrows.CorruptError):
        reader.receive(unit)
    assert reader.damaged == 4
    assert reader.receive(writer.send(message(2))) == [message(2)]
    with pytest.raises(narrows.LimitError):
        writer.send(b"x" * (narrows.MESSAGE_MAX + 1))
    for length in (0, 1, narrows.MESSAGE_MAX):
        assert reader.receive(writer.send(memoryview(b"x" * length))) == [b"x" * length]
    with pytest.raises(TypeError):
        reader.receive("text")  # type: ignore[arg-type]
