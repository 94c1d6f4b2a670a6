/* Topics. */
#include "face.h"

/* Two writers and two readers; one reader joins late, one unit is damaged. */
void test_topics(void)
{
    narrows_topic_writer *writers[2] = {narrows_topic_writer_new(NULL), narrows_topic_writer_new(NULL)};
    narrows_topic_reader *readers[2] = {narrows_topic_reader_new(NULL), NULL};
    narrows_bytes unit, message;
    narrows_missed missed;
    char text[200];
    CHECK(narrows_topic_reader_came(writers[0]) == NARROWS_OK);
    for (int i = 0; i < 300; i++) {
        narrows_topic_writer *writer = writers[i % 2];
        if (i == 200)
            readers[1] = narrows_topic_reader_new(NULL);
        size_t len = make_message(text, sizeof text, i);
        if (i == 100)
            CHECK(narrows_topic_offer(writer, data, 1000) == 1);
        while (narrows_topic_announcement(writer, &unit) > 0)
            for (int r = 0; r < 2 && readers[r] != NULL; r++) {
                CHECK(narrows_topic_receive(readers[r], unit.data, unit.len) == NARROWS_OK);
                CHECK(narrows_topic_next(readers[r], &message) == 0);
            }
        CHECK(narrows_topic_send(writer, text, len, &unit) == NARROWS_OK);
        for (int r = 0; r < 2 && readers[r] != NULL; r++) {
            CHECK(narrows_topic_receive(readers[r], unit.data, unit.len) == NARROWS_OK);
            FAILS(narrows_topic_receive(readers[r], unit.data, unit.len), NARROWS_ERROR_MISUSE, "narrows_topic_next");
            CHECK(narrows_topic_next(readers[r], &message) == 1);
            CHECK(message.len == len && memcmp(message.data, text, len) == 0);
            CHECK(narrows_topic_next(readers[r], &message) == 0 && message.len == 0);
        }
    }
    CHECK(narrows_topic_receive(readers[0], "\xff", 1) < 0 && narrows_topic_next(readers[0], &message) == 0);
    CHECK(narrows_topic_missed(readers[0], &missed) == NARROWS_OK && missed.damaged == 1 && missed.unannounced == 0);
    FAILS(narrows_topic_send(writers[0], NULL, 1, &unit), NARROWS_ERROR_MISUSE, "null");
    FAILS(narrows_topic_send(writers[0], "x", 1, NULL), NARROWS_ERROR_MISUSE, "null");
    FAILS(narrows_topic_announcement(writers[0], NULL), NARROWS_ERROR_MISUSE, "null");
    FAILS(narrows_topic_receive(readers[0], NULL, 1), NARROWS_ERROR_MISUSE, "null");
    FAILS(narrows_topic_next(readers[0], NULL), NARROWS_ERROR_MISUSE, "null");
    FAILS(narrows_topic_next((narrows_topic_reader *)writers[0], &message), NARROWS_ERROR_MISUSE, "invalid topic reader handle");
    for (int i = 0; i < 2; i++) {
        CHECK(narrows_topic_writer_free(writers[i]) == NARROWS_OK && narrows_topic_reader_free(readers[i]) == NARROWS_OK);
        FAILS(narrows_topic_send(writers[i], "x", 1, &unit), NARROWS_ERROR_CLOSED, "closed");
        FAILS(narrows_topic_receive(readers[i], "x", 1), NARROWS_ERROR_CLOSED, "closed");
    }
}

static void *copy(narrows_bytes bytes)
{
    void *to = malloc(bytes.len + 1);
    CHECK(to != NULL);
    memcpy(to, bytes.data, bytes.len);
    return to;
}

/* A unit releases a waiting message and is bad after that: the message is returned, and the topic
 * continues. */
void test_topic_unit_half_bad(void)
{
    enum { RUBBISH = 70000 };
    narrows_topic_writer *writer = narrows_topic_writer_new(NULL);
    narrows_topic_reader *late = NULL;
    narrows_bytes unit, message;
    narrows_missed missed;
    char text[200], dictionary[8000];
    unsigned char *announcement = NULL, *waiting = NULL;
    size_t announcement_len = 0, waiting_len = 0, len = 0;
    for (int i = 0; i < 40; i++)
        len += make_message(dictionary + len, 200, i);
    CHECK(narrows_topic_offer(writer, dictionary, len) == 1);
    /* Until a message needs the announced dictionary. */
    for (int i = 0; waiting == NULL; i++) {
        CHECK(i < 30000);
        CHECK(narrows_topic_reader_came(writer) == NARROWS_OK);
        if (narrows_topic_announcement(writer, &unit) > 0) {
            free(announcement);
            announcement_len = unit.len;
            announcement = copy(unit);
        }
        len = make_message(text, sizeof text, i);
        CHECK(narrows_topic_send(writer, text, len, &unit) == NARROWS_OK);
        late = narrows_topic_reader_new(NULL);
        CHECK(narrows_topic_receive(late, unit.data, unit.len) == NARROWS_OK);
        if (announcement != NULL && narrows_topic_next(late, &message) == 0) {
            waiting_len = unit.len;
            waiting = copy(unit);
        } else {
            CHECK(narrows_topic_reader_free(late) == NARROWS_OK);
            pause_ms(1);
        }
    }
    announcement = realloc(announcement, announcement_len + 1 + RUBBISH);
    memset(announcement + announcement_len, 0, 1 + RUBBISH);
    announcement[announcement_len] = 1;
    CHECK(narrows_topic_receive(late, announcement, announcement_len + 1 + RUBBISH) == NARROWS_OK);
    CHECK(narrows_topic_next(late, &message) == 1 && message.len == len && memcmp(message.data, text, len) == 0);
    CHECK(narrows_topic_next(late, &message) == 0);
    CHECK(narrows_topic_missed(late, &missed) == NARROWS_OK && missed.damaged == 1);
    /* A bad unit that releases nothing is an error, and does no harm. */
    CHECK(narrows_topic_receive(late, announcement + announcement_len, 1 + RUBBISH) < 0);
    CHECK(narrows_topic_receive(late, waiting, waiting_len) == NARROWS_OK);
    CHECK(narrows_topic_next(late, &message) == 1 && message.len == len && memcmp(message.data, text, len) == 0);
    free(announcement);
    free(waiting);
    CHECK(narrows_topic_reader_free(late) == NARROWS_OK && narrows_topic_writer_free(writer) == NARROWS_OK);
}
