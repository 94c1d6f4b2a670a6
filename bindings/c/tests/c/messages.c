/* Message links. */
#include "face.h"

size_t make_message(char *to, size_t size, int i)
{
    int len = snprintf(to, size, "SUBSCRIBE sip:u%d@example.net SIP/2.0\r\nCSeq: %d SUBSCRIBE\r\nExpires: 3600", i * 7919 % 100, i);
    return (size_t)len;
}

int take(narrows_messages *end, narrows_bytes unit, char *got, size_t *got_len)
{
    char *copy = malloc(unit.len + 1);
    int count = 0;
    memcpy(copy, unit.data, unit.len);
    for (size_t at = 0; at < unit.len;) {
        size_t consumed = 0;
        narrows_bytes message;
        int32_t front = narrows_message_receive(end, copy + at, unit.len - at, &consumed, &message);
        CHECK(front >= 0 && front != NARROWS_FRONT_INCOMPLETE && consumed > 0);
        if (front == NARROWS_FRONT_MESSAGE) {
            count++;
            memcpy(got, message.data, message.len);
            *got_len = message.len;
        }
        at += consumed;
    }
    free(copy);
    return count;
}

int settle(narrows_messages *from, narrows_messages *to, char *got, size_t *got_len)
{
    narrows_bytes unit;
    int32_t more;
    int messages = 0;
    while ((more = narrows_message_next(from, &unit)) > 0)
        messages += take(to, unit, got, got_len);
    CHECK(more == 0);
    return messages;
}

static char got[70000];
static size_t got_len;

/* Sends a message and checks that it arrives. Returns the length of its frame. */
static size_t pass(narrows_messages *from, narrows_messages *to, const char *message, size_t len, uint32_t flags)
{
    narrows_bytes unit;
    narrows_sent sent;
    settle(from, to, got, &got_len);
    CHECK(narrows_message_send(from, message, len, flags, &unit, &sent) == NARROWS_OK);
    CHECK(sent.wire_len + sent.control_len <= unit.len);
    CHECK(take(to, unit, got, &got_len) == 1);
    CHECK(got_len == len && memcmp(got, message, len) == 0);
    CHECK(narrows_message_answered(from, sent.seq, unit.len, 100000) == NARROWS_OK);
    settle(to, from, got, &got_len);
    return sent.wire_len;
}

void test_messages(void)
{
    static char most[65536];
    char text[200];
    for (uint32_t flags = 0; flags < 16; flags++) {
        narrows_message_options options = {.struct_size = sizeof options, .flags = flags};
        if ((flags & NARROWS_MESSAGES_UNORDERED) && !(flags & NARROWS_MESSAGES_BORDERS)) {
            NO_OBJECT(narrows_messages_new(&options), NARROWS_ERROR_MISUSE, "carrier");
            continue;
        }
        narrows_messages *a = narrows_messages_new(&options), *b = narrows_messages_new(&options);
        CHECK(a != NULL && b != NULL);
        pass(a, b, text, 0, 0);
        pass(a, b, "x", 1, 0);
        pass(a, b, most, 65535, 0);
        narrows_bytes unit;
        FAILS(narrows_message_send(a, most, 65536, 0, &unit, NULL), NARROWS_ERROR_LIMIT, "65536");
        for (int i = 0; i < 300; i++) {
            size_t len = make_message(text, sizeof text, i);
            pass(a, b, text, len, i % 10 == 0 ? NARROWS_MESSAGE_PRIVATE : 0);
            if (!(flags & NARROWS_MESSAGES_ONE_WAY))
                pass(b, a, text, len, 0);
        }
        narrows_totals sent, received;
        CHECK(narrows_message_totals(a, &sent, NULL) == NARROWS_OK && narrows_message_totals(b, NULL, &received) == NARROWS_OK);
        CHECK(sent.raw_bytes == received.raw_bytes && sent.raw_bytes > 65535 + 300 * 50);
        CHECK(narrows_messages_free(a) == NARROWS_OK && narrows_messages_free(b) == NARROWS_OK);
        FAILS(narrows_message_next(a, &unit), NARROWS_ERROR_CLOSED, "closed");
    }
}

void test_message_misuse(void)
{
    narrows_bytes unit, message;
    size_t consumed;
    narrows_message_options options = {.struct_size = sizeof options, .flags = 1u << 20};
    NO_OBJECT(narrows_messages_new(&options), NARROWS_ERROR_MISUSE, "flags");
    options.flags = 0;
    options.history = 5;
    NO_OBJECT(narrows_messages_new(&options), NARROWS_ERROR_MISUSE, "history");
    options.history = 0;
    options.message_max = 65536;
    NO_OBJECT(narrows_messages_new(&options), NARROWS_ERROR_MISUSE, "65536");
    options.message_max = 0;
    options.seed = (narrows_bytes){"short", 5};
    NO_OBJECT(narrows_messages_new(&options), NARROWS_ERROR_MISUSE, "dictionary");
    options.seed = (narrows_bytes){data, 65537};
    NO_OBJECT(narrows_messages_new(&options), NARROWS_ERROR_LIMIT, "65537");
    options.seed = (narrows_bytes){NULL, 5};
    NO_OBJECT(narrows_messages_new(&options), NARROWS_ERROR_MISUSE, "null");
    options.seed.len = 0;
    options.known_count = 1;
    NO_OBJECT(narrows_messages_new(&options), NARROWS_ERROR_MISUSE, "null");
    options.known_count = 0;
    options.policy = "messages:latency_us=soon";
    NO_OBJECT(narrows_messages_new(&options), NARROWS_ERROR_MISUSE, "latency_us=soon");
    options.policy = NULL;
    narrows_messages *end = narrows_messages_new(&options);
    FAILS(narrows_message_send(end, NULL, 1, 0, &unit, NULL), NARROWS_ERROR_MISUSE, "null");
    FAILS(narrows_message_send(end, "x", 1, 0, NULL, NULL), NARROWS_ERROR_MISUSE, "null");
    FAILS(narrows_message_send(end, "x", 1, 2, &unit, NULL), NARROWS_ERROR_MISUSE, "flags");
    FAILS(narrows_message_next(end, NULL), NARROWS_ERROR_MISUSE, "null");
    FAILS(narrows_message_receive(end, NULL, 1, &consumed, &message), NARROWS_ERROR_MISUSE, "null");
    FAILS(narrows_message_receive(end, "x", 1, NULL, &message), NARROWS_ERROR_MISUSE, "null");
    FAILS(narrows_message_receive(end, "x", 1, &consumed, NULL), NARROWS_ERROR_MISUSE, "null");
    FAILS(narrows_message_offer(end, "x", 1), NARROWS_ERROR_MISUSE, "dictionary");
    CHECK(narrows_message_receive(end, NULL, 0, &consumed, &message) == NARROWS_FRONT_INCOMPLETE && consumed == 0);
    CHECK(narrows_message_send(end, NULL, 0, 0, &unit, NULL) == NARROWS_OK);
    CHECK(narrows_messages_free(end) == NARROWS_OK);
    FAILS(narrows_messages_free(end), NARROWS_ERROR_CLOSED, "closed");
}

/* Bytes that arrive one by one; a damaged frame and its recovery; a new connection. */
void test_message_trouble(void)
{
    char text[200];
    narrows_bytes unit, message;
    size_t consumed;
    narrows_message_options options = {.struct_size = sizeof options, .flags = NARROWS_MESSAGES_CHECK_ALL};
    narrows_messages *a = narrows_messages_new(&options), *b = narrows_messages_new(&options);
    for (int i = 0; i < 20; i++) {
        size_t len = make_message(text, sizeof text, i);
        CHECK(narrows_message_send(a, text, len, 0, &unit, NULL) == NARROWS_OK);
        char *copy = malloc(unit.len);
        memcpy(copy, unit.data, unit.len);
        size_t begin = 0;
        int32_t front = NARROWS_FRONT_NOTHING;
        for (size_t end = 1; end <= unit.len; end++) {
            front = narrows_message_receive(b, copy + begin, end - begin, &consumed, &message);
            CHECK(front >= 0);
            begin += consumed;
        }
        CHECK(front == NARROWS_FRONT_MESSAGE && begin == unit.len && message.len == len && memcmp(message.data, text, len) == 0);
        free(copy);
        pass(b, a, text, len, 0);
    }
    /* A damaged last byte: the message is dropped, requested, and sent again before the next. */
    size_t len = make_message(text, sizeof text, 21);
    CHECK(narrows_message_send(a, text, len, 0, &unit, NULL) == NARROWS_OK);
    char *copy = malloc(unit.len);
    memcpy(copy, unit.data, unit.len);
    copy[unit.len - 1] ^= 1;
    CHECK(narrows_message_receive(b, copy, unit.len, &consumed, &message) == NARROWS_FRONT_UNDECODABLE);
    CHECK(consumed == unit.len && message.len == 0);
    free(copy);
    /* A refused message does not discard pending control frames. */
    FAILS(narrows_message_send(b, data, 65536, 0, &unit, NULL), NARROWS_ERROR_LIMIT, "65536");
    settle(b, a, got, &got_len);
    CHECK(settle(a, b, got, &got_len) == 1 && got_len == len && memcmp(got, text, len) == 0);
    len = make_message(text, sizeof text, 22);
    pass(a, b, text, len, 0);
    /* Garbage is an error. */
    narrows_messages *c = narrows_messages_new(NULL);
    CHECK(narrows_message_receive(c, "\xc1\x03rubbish of all", 16, &consumed, &message) < 0);
    CHECK(narrows_last_error()[0] != 0);
    CHECK(narrows_messages_free(c) == NARROWS_OK);
    /* The peer is replaced by a new one. */
    c = narrows_messages_new(&options);
    CHECK(narrows_message_reconnect(a) == NARROWS_OK);
    pass(a, c, text, len, 0);
    pass(c, a, text, len, 0);
    CHECK(narrows_messages_free(a) == NARROWS_OK && narrows_messages_free(b) == NARROWS_OK && narrows_messages_free(c) == NARROWS_OK);
}

/* Sends messages until a dictionary makes them less than half as long as `alone`. */
static void shortens(narrows_messages *a, narrows_messages *b, uint64_t alone)
{
    char text[200];
    for (int i = 0;; i++) {
        if (pass(a, b, text, make_message(text, sizeof text, i), 0) * 2 < alone)
            return;
        CHECK(i < 60000);
        /* Leaves time for the training thread. */
        if (i > 3000)
            pause_ms(1);
    }
}

void test_dictionaries(void)
{
    enum { COUNT = 400 };
    static char samples[COUNT * 200];
    static unsigned char dictionary[4096];
    size_t lens[COUNT], total = 0, len = 0;
    for (int i = 0; i < COUNT; i++)
        total += lens[i] = make_message(samples + total, 200, i);
    CHECK(narrows_dictionary_train(samples, lens, COUNT, dictionary, sizeof dictionary, &len) == NARROWS_OK);
    CHECK(len > 100 && len <= sizeof dictionary);
    FAILS(narrows_dictionary_train(samples, lens, 1, dictionary, sizeof dictionary, &len), NARROWS_ERROR_MISUSE, "samples");
    FAILS(narrows_dictionary_train(NULL, NULL, 0, dictionary, sizeof dictionary, &len), NARROWS_ERROR_MISUSE, "samples");
    FAILS(narrows_dictionary_train(samples, lens, COUNT, dictionary, 10, &len), NARROWS_ERROR_MISUSE, "room");
    FAILS(narrows_dictionary_train(samples, lens, COUNT, NULL, 4096, &len), NARROWS_ERROR_MISUSE, "null");
    FAILS(narrows_dictionary_train(samples, NULL, COUNT, dictionary, 4096, &len), NARROWS_ERROR_MISUSE, "null");
    FAILS(narrows_dictionary_train(samples, lens, COUNT, dictionary, 4096, NULL), NARROWS_ERROR_MISUSE, "null");

    /* Frame length without a dictionary and without history. */
    narrows_message_options options = {.struct_size = sizeof options, .flags = NARROWS_MESSAGES_NO_HISTORY};
    narrows_messages *a = narrows_messages_new(&options), *b = narrows_messages_new(&options);
    char text[200];
    uint64_t alone = 0;
    for (int i = 0; i < 50; i++)
        alone = pass(a, b, text, make_message(text, sizeof text, 1000), 0);
    CHECK(narrows_messages_free(a) == NARROWS_OK && narrows_messages_free(b) == NARROWS_OK);

    /* A common seed makes the first message short, whether or not it is also among the known ones. */
    narrows_bytes known = {dictionary, len}, unit;
    for (size_t named = 0; named < 2; named++) {
        options = (narrows_message_options){.struct_size = sizeof options, .seed = known, .known = &known, .known_count = named};
        a = narrows_messages_new(&options);
        b = narrows_messages_new(&options);
        narrows_sent first;
        size_t text_len = make_message(text, sizeof text, 1000);
        CHECK(narrows_message_send(a, text, text_len, 0, &unit, &first) == NARROWS_OK);
        CHECK(first.wire_len * 2 < alone);
        CHECK(take(b, unit, got, &got_len) == 1 && got_len == text_len && memcmp(got, text, text_len) == 0);
        for (int i = 0; i < 50; i++)
            pass(a, b, text, make_message(text, sizeof text, 2000 + i), 0);
        CHECK(narrows_messages_free(a) == NARROWS_OK && narrows_messages_free(b) == NARROWS_OK);
    }

    /* Offered to a peer that does not know it. */
    options = (narrows_message_options){.struct_size = sizeof options, .flags = NARROWS_MESSAGES_NO_HISTORY};
    a = narrows_messages_new(&options);
    b = narrows_messages_new(&options);
    CHECK(narrows_message_offer(a, dictionary, len) == 1);
    shortens(a, b, alone);
    CHECK(narrows_messages_free(a) == NARROWS_OK && narrows_messages_free(b) == NARROWS_OK);
    /* Trained in the background: no message is lost. */
    options.flags |= NARROWS_MESSAGES_LEARN;
    a = narrows_messages_new(&options);
    b = narrows_messages_new(&options);
    shortens(a, b, alone);
    CHECK(narrows_messages_free(a) == NARROWS_OK && narrows_messages_free(b) == NARROWS_OK);
}
