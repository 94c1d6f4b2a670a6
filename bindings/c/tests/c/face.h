/* Shared by the tests of the C bindings. */
#ifndef FACE_H
#define FACE_H
#define _POSIX_C_SOURCE 200809L
#include <narrows.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CHECK(what)                                                                                                    \
    do {                                                                                                               \
        if (!(what)) {                                                                                                 \
            fprintf(stderr, "%s:%d: %s; last error: %s\n", __FILE__, __LINE__, #what, narrows_last_error());           \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

/* The call fails with this status, which is also the last one; its error contains the words. */
#define FAILS(call, status, words)                                                                                     \
    do {                                                                                                               \
        CHECK((long)(call) == (long)(status));                                                                         \
        CHECK(narrows_last_status() == (status));                                                                      \
        CHECK(strstr(narrows_last_error(), (words)) != NULL);                                                          \
    } while (0)

#define NO_OBJECT(call, status, words)                                                                                 \
    do {                                                                                                               \
        CHECK((call) == NULL);                                                                                         \
        CHECK(narrows_last_status() == (status));                                                                      \
        CHECK(strstr(narrows_last_error(), (words)) != NULL);                                                          \
    } while (0)

#define LEN ((size_t)1200007)

/* One third repeats, one third is text of few letters, one third is noise. */
extern unsigned char data[LEN];

struct job {
    int fd;
    narrows_stream_options options;
    size_t len;
    long status;
    pthread_t thread;
};

void pause_ms(long ms);
/* Writes job->len bytes of the data in pieces of several lengths, and closes the writer. */
void *write_all(void *argument);
struct job start_writer(int fd, size_t len, uint32_t flags, const char *policy);
/* Reads a stream that must be the first `len` bytes of the data. */
void read_all(narrows_reader *reader, size_t len);
void pair(int fds[2]);
void tcp_pair(int fds[2]);
/* Encodes the first `len` bytes; the caller frees. */
unsigned char *encoded(size_t len, const char *policy, size_t *wire_len);

/* Reads the file at many places; it must be the data. */
int be_file_reader(const char *path);

size_t make_message(char *to, size_t size, int i);
/* Receives a unit and copies its last message to `got`. Returns the number of messages. */
int take(narrows_messages *end, narrows_bytes unit, char *got, size_t *got_len);
/* Passes all pending units of `from` to `to`. Returns the number of messages. */
int settle(narrows_messages *from, narrows_messages *to, char *got, size_t *got_len);

/* The tests, by file. */
void test_sockets(void);
void test_pipes_and_files(void);
void test_both_ways(void);
void test_small_writes(void);
void test_given_up(void);
void test_not_stored(void);
void test_peer_gone(void);
void test_damaged_streams(void);
void test_out_of_descriptors(void);
void test_totals_of_failures(void);
void test_totals_at_the_end(void);
void test_end_of_an_open_pipe(void);
void test_misuse(void);
void test_coder(void);
void test_coder_misuse(void);
void test_damaged_bytes(void);
void test_once(void);
void test_once_misuse(void);
void test_used_again(void);
void test_files(void);
void test_places_to_begin_at(void);
void test_file_options(void);
void test_file_misuse(void);
void test_damaged_files(void);
void test_threads_on_a_file(void);
void test_messages(void);
void test_message_misuse(void);
void test_message_trouble(void);
void test_dictionaries(void);
void test_topics(void);
void test_topic_unit_half_bad(void);
void test_two_threads(void);
void test_forked(void);
void test_threads(void);

#endif
