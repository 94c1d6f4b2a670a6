/* Narrows: makes data cross a narrow place faster.
 *
 * Made by cbindgen from bindings/c/src: change that, then `make -C bindings/c header`.
 *
 * Objects are handles. One that was closed or freed is found as such (NARROWS_ERROR_CLOSED), and so is a pointer that never
 * was one (NARROWS_ERROR_MISUSE). Objects may be used by any thread, by one at a time: a second one is refused
 * (NARROWS_ERROR_BUSY), since the order of what both do would be nobody's. Different objects may be used side by side.
 * Nothing here may be called from a signal handler, nor between fork and exec.
 */


#ifndef NARROWS_H
#define NARROWS_H

#include <stddef.h>
#include <stdint.h>

/**
 * Flag: the stream uses one direction of the socket only, so that the other may carry another one, or anything else. Nothing is
 * confirmed then. Both ends must say the same.
 */
#define NARROWS_ONE_WAY 1

/**
 * Flag: closing the object closes the descriptor. If opening fails it stays open. Of two streams on one descriptor one has it.
 */
#define NARROWS_CLOSE_FD 2

/**
 * Flag: no check on the blocks, for data that has its own.
 */
#define NARROWS_NO_CHECK 4

/**
 * Flag: an index at the end, so that a file can be read from anywhere.
 */
#define NARROWS_INDEX 8

/**
 * Flag: the carrier delivers units as they were sent (ZeroMQ, datagrams, a queue), so that frames need no length.
 */
#define NARROWS_MESSAGES_BORDERS 1

/**
 * Flag: the carrier loses, repeats or reorders units. Needs NARROWS_MESSAGES_BORDERS.
 */
#define NARROWS_MESSAGES_UNORDERED 2

/**
 * Flag: nothing comes back from the peer, so that what is lost cannot be asked for.
 */
#define NARROWS_MESSAGES_ONE_WAY 4

/**
 * Flag: a check on every frame, for carriers that damage what they carry.
 */
#define NARROWS_MESSAGES_CHECK_ALL 8

/**
 * Flag: keep no history of what was sent.
 */
#define NARROWS_MESSAGES_NO_HISTORY 16

/**
 * Flag: train dictionaries with what is sent, on a thread in the background, and use those that pay.
 */
#define NARROWS_MESSAGES_LEARN 32

/**
 * Flag of narrows_message_send: the message shows in the length of nothing, as secrets must where others can choose what is sent
 * beside them.
 */
#define NARROWS_MESSAGE_PRIVATE 1

/**
 * What became of a call. Failures are negative, so that functions that return a count return them too; what was wrong in
 * words is told by narrows_last_error().
 */
enum narrows_status
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    NARROWS_OK = 0,
    /**
     * The bytes are not what a sender wrote: damaged or hostile. Fetch them again.
     */
    NARROWS_ERROR_CORRUPT = -1,
    /**
     * The stream stops before its end. Fetch the rest, or again.
     */
    NARROWS_ERROR_TRUNCATED = -2,
    /**
     * A newer format, or a feature or codec that this library does not know. Upgrade the reader.
     */
    NARROWS_ERROR_UNSUPPORTED = -3,
    /**
     * A length or a demand beyond the limits of this side. Raise the limit, or refuse the peer.
     */
    NARROWS_ERROR_LIMIT = -4,
    /**
     * The call itself is wrong: a null pointer, a bad specification, calls out of order, a handle that never was.
     */
    NARROWS_ERROR_MISUSE = -5,
    /**
     * The operating system or the peer's connection failed.
     */
    NARROWS_ERROR_IO = -6,
    /**
     * The object was closed or freed before.
     */
    NARROWS_ERROR_CLOSED = -7,
    /**
     * Another thread is in a call with this object.
     */
    NARROWS_ERROR_BUSY = -8,
    /**
     * A defect of the library. The object can only be closed.
     */
    NARROWS_ERROR_INTERNAL = -9,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum narrows_status narrows_status;
#else
typedef int32_t narrows_status;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/**
 * What narrows_encode shall do besides taking its input.
 */
enum narrows_mode
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    /**
     * Gather until blocks are worth encoding.
     */
    NARROWS_CONTINUE = 0,
    /**
     * Give everything that was taken so far.
     */
    NARROWS_FLUSH = 1,
    /**
     * Give everything, and the end of the stream.
     */
    NARROWS_END = 2,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum narrows_mode narrows_mode;
#else
typedef int32_t narrows_mode;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/**
 * What the front of the input was.
 */
enum narrows_front
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    /**
     * Something that is dealt with.
     */
    NARROWS_FRONT_NOTHING = 0,
    NARROWS_FRONT_MESSAGE = 1,
    /**
     * The beginning of a frame: call again with more behind it.
     */
    NARROWS_FRONT_INCOMPLETE = 2,
    /**
     * A message that cannot be decoded. On an ordered carrier narrows_message_next asks for it.
     */
    NARROWS_FRONT_UNDECODABLE = 3,
    /**
     * The peer missed messages that were sent from here, and they cannot be sent again.
     */
    NARROWS_FRONT_GAP = 4,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum narrows_front narrows_front;
#else
typedef int32_t narrows_front;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/**
 * Makes bytes of a stream, on the thread that calls. Not a pointer to memory.
 */
typedef struct narrows_decoder narrows_decoder;

/**
 * Makes a stream of bytes, on the thread that calls. Not a pointer to memory.
 */
typedef struct narrows_encoder narrows_encoder;

/**
 * One end of a message link: what is sent there and what comes. Not a pointer to memory.
 */
typedef struct narrows_messages narrows_messages;

/**
 * A stream that is read. Not a pointer to memory.
 */
typedef struct narrows_reader narrows_reader;

/**
 * Reads what any number of writers wrote to a topic. Not a pointer to memory.
 */
typedef struct narrows_topic_reader narrows_topic_reader;

/**
 * Writes messages to any number of readers, which come when they like and answer nothing. Not a pointer to memory.
 */
typedef struct narrows_topic_writer narrows_topic_writer;

/**
 * A stream that is written. Not a pointer to memory.
 */
typedef struct narrows_writer narrows_writer;

/**
 * How a stream shall be. Set struct_size to sizeof(narrows_stream_options) and the rest to what is wanted: all zeros, as NULL
 * in place of the structure, are the defaults.
 */
typedef struct narrows_stream_options {
    size_t struct_size;
    /**
     * Who chooses the methods; NULL is "balance". Of writers and encoders only.
     */
    const char *policy;
    /**
     * NARROWS_ONE_WAY and so on.
     */
    uint32_t flags;
    /**
     * Threads that encode or decode; 0 is by the number of cores. Encoders and decoders have none of their own.
     */
    uint32_t threads;
    /**
     * A stream fails when the link takes or brings nothing for so long, or its end is not confirmed; 0 is never. Then narrows_write,
     * narrows_read and narrows_writer_close wait for as long as the peer is silent and its connection is there.
     */
    uint32_t stall_timeout_ms;
    uint32_t reserved;
    /**
     * How many bytes will be written, if that is known: it helps the policy. 0 is unknown.
     */
    uint64_t raw_len;
} narrows_stream_options;

/**
 * What went over a link so far.
 */
typedef struct narrows_totals {
    /**
     * Bytes of the application.
     */
    uint64_t raw_bytes;
    /**
     * Bytes of the link.
     */
    uint64_t wire_bytes;
} narrows_totals;

/**
 * Bytes to take, of which `pos` were taken.
 */
typedef struct narrows_input {
    const void *data;
    size_t size;
    size_t pos;
} narrows_input;

/**
 * Room to fill, of which `pos` bytes were filled.
 */
typedef struct narrows_output {
    void *data;
    size_t size;
    size_t pos;
} narrows_output;

/**
 * Bytes of somebody else.
 */
typedef struct narrows_bytes {
    const void *data;
    size_t len;
} narrows_bytes;

/**
 * How one end of a message link shall be. Set struct_size to sizeof(narrows_message_options); all zeros are the defaults. The flags
 * must be those of the peer, but for NARROWS_MESSAGES_LEARN and NARROWS_MESSAGES_NO_HISTORY.
 */
typedef struct narrows_message_options {
    size_t struct_size;
    /**
     * Who chooses the methods; NULL is "messages".
     */
    const char *policy;
    /**
     * NARROWS_MESSAGES_BORDERS and so on.
     */
    uint32_t flags;
    /**
     * Longest message in bytes, sent or received; 0 is 65,535, the most that there is.
     */
    uint32_t message_max;
    /**
     * Bytes of history that the sender wants and the receiver keeps, 1 KiB to 64 KiB; 0 is 16 KiB. The published figures have
     * 64 KiB, which leaves some per cent less of most messages.
     */
    uint32_t history;
    uint32_t reserved;
    /**
     * A dictionary that the history begins with; the peer needs it among its `known`, or as its own seed. Empty is none.
     */
    struct narrows_bytes seed;
    /**
     * Dictionaries that this end has from elsewhere, so that they need not be sent.
     */
    const struct narrows_bytes *known;
    size_t known_count;
} narrows_message_options;

/**
 * What became of a message that was sent.
 */
typedef struct narrows_sent {
    /**
     * Its number, for narrows_message_answered.
     */
    uint64_t seq;
    /**
     * Bytes of its frame.
     */
    size_t wire_len;
    /**
     * Bytes for the peer in front of it.
     */
    size_t control_len;
} narrows_sent;

/**
 * What a reader of a topic had to leave out.
 */
typedef struct narrows_missed {
    /**
     * Messages whose dictionary was not announced in time.
     */
    uint64_t unannounced;
    /**
     * Units that are none, or whose message does not decode.
     */
    uint64_t damaged;
} narrows_missed;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * The version of the library, such as "0.1.0".
 */
const char *narrows_version(void);

/**
 * A word for a status, such as "corrupt"; "unknown" for a number that is none.
 */
const char *narrows_status_name(int32_t status);

/**
 * The status of the calling thread's last call that failed. Calls that succeed do not change it.
 */
narrows_status narrows_last_status(void);

/**
 * What was wrong then, in words for a person, of one line. Good until the thread's next call that fails, and never NULL.
 */
const char *narrows_last_error(void);

/**
 * Whether a policy can be used: "balance", "fixed:zstd:level=3", "messages:latency_us=20". The words of a failure name what is
 * wrong, and the policies that there are.
 * `policy` is null or a string.
 */
narrows_status narrows_policy_check(const char *policy);

/**
 * Trains a dictionary for messages with `count` samples, which lie one behind the other at `samples` and have the lengths
 * `lens`. It has at most `room` bytes; some 100 samples for each KiB make a good one, and 8 KiB are enough for most kinds of
 * messages. Its length is stored at `len`.
 * `lens` has `count` lengths, `samples` as many bytes as all of them, and `dictionary` room for `room`.
 */
narrows_status narrows_dictionary_train(const void *samples,
                                        const size_t *lens,
                                        size_t count,
                                        void *dictionary,
                                        size_t room,
                                        size_t *len);

/**
 * Begins a stream over a socket, pipe or file that is open for writing. The descriptor must not be written meanwhile, nor be
 * read if it is a socket, unless NARROWS_ONE_WAY is set; it may be closed, since the writer has one of its own. NULL is a
 * failure. A child of fork cannot use it.
 * `options` is null or a structure as its struct_size says.
 */
struct narrows_writer *narrows_writer_open(int fd,
                                           const struct narrows_stream_options *options);

/**
 * Writes all `len` bytes and returns `len`, or a negative narrows_status. Waits while the link has enough to do, without limit
 * unless stall_timeout_ms is set. What was written goes its way at once if the link is idle: there is nothing to flush.
 * `data` is null or has `len` bytes.
 */
ptrdiff_t narrows_write(struct narrows_writer *writer,
                        const void *data,
                        size_t len);

/**
 * Ends the stream and waits until the reader has confirmed that it has everything; on a pipe, a file, or with NARROWS_ONE_WAY
 * until everything was handed to the system. Without stall_timeout_ms it waits as long as the reader says nothing;
 * narrows_writer_cancel from another thread ends that. A socket is shut down for writing. The writer is gone, whatever is
 * returned, but for NARROWS_ERROR_BUSY and NARROWS_ERROR_MISUSE.
 */
narrows_status narrows_writer_close(struct narrows_writer *writer);

/**
 * As narrows_writer_close, and stores the totals of the whole stream, also if it failed. They are not stored when the writer is not
 * gone, that is with NARROWS_ERROR_BUSY and NARROWS_ERROR_MISUSE, nor if it was closed before.
 * `totals` is null or a place for the structure.
 */
narrows_status narrows_writer_finish(struct narrows_writer *writer,
                                     struct narrows_totals *totals);

/**
 * Makes this stream fail soon, and calls of other threads with it return: the one function, with narrows_reader_cancel, that may be
 * called while another thread is in a call with the same object. The writer has still to be closed.
 */
narrows_status narrows_writer_cancel(struct narrows_writer *writer);

/**
 * What was sent so far: some of what was written may not have reached the link yet. narrows_writer_finish tells the whole.
 * `totals` is null or a place for the structure.
 */
narrows_status narrows_writer_totals(struct narrows_writer *writer,
                                     struct narrows_totals *totals);

/**
 * Begins to read a stream from a socket, pipe or file. As with narrows_writer_open the descriptor is left to the reader until the
 * stream is over. That is where the stream ends, though others keep the pipe or socket open; in a file nothing may follow it.
 * NULL is a failure.
 * `options` is null or a structure as its struct_size says.
 */
struct narrows_reader *narrows_reader_open(int fd,
                                           const struct narrows_stream_options *options);

/**
 * Waits for bytes, without limit unless stall_timeout_ms is set, and returns how many there are, at most `len`; 0 at the end of the stream, when all of it was found whole;
 * or a negative narrows_status, when what came whole before was returned. `len` must not be 0.
 * `data` is null or has room for `len` bytes.
 */
ptrdiff_t narrows_read(struct narrows_reader *reader,
                       void *data,
                       size_t len);

/**
 * Tells the writer that all is stored, if narrows_read has returned 0; else that this reader gave up, which returns
 * NARROWS_ERROR_TRUNCATED. So whatever has to be done that nothing is lost is done before. A socket is shut down for writing too,
 * unless NARROWS_ONE_WAY is set. The reader is gone, whatever is returned, but for NARROWS_ERROR_BUSY and NARROWS_ERROR_MISUSE.
 */
narrows_status narrows_reader_close(struct narrows_reader *reader);

/**
 * As narrows_reader_close, and stores the totals of the whole stream, also if it failed. They are not stored when the reader is not
 * gone, that is with NARROWS_ERROR_BUSY and NARROWS_ERROR_MISUSE, nor if it was closed before.
 * `totals` is null or a place for the structure.
 */
narrows_status narrows_reader_finish(struct narrows_reader *reader,
                                     struct narrows_totals *totals);

/**
 * Makes this stream fail soon, as narrows_writer_cancel. After the end was read it makes narrows_reader_close tell the writer that
 * this reader failed.
 */
narrows_status narrows_reader_cancel(struct narrows_reader *reader);

/**
 * What was received so far.
 * `totals` is null or a place for the structure.
 */
narrows_status narrows_reader_totals(struct narrows_reader *reader, struct narrows_totals *totals);

/**
 * A new encoder; NULL is a failure. Its stream is one without confirmation: of `options` policy, raw_len and the flags
 * NARROWS_NO_CHECK and NARROWS_INDEX apply. The policy takes the time between calls for that in which the link carried what the call
 * before gave, unless narrows_encoder_link_took says otherwise; for bytes that are only stored, name a method: "fixed:zstd".
 * `options` is null or a structure as its struct_size says.
 */
struct narrows_encoder *narrows_encoder_new(const struct narrows_stream_options *options);

/**
 * Takes what it can of `input` and fills `output`, and moves their positions. `mode` is a narrows_mode. Returns 0 when everything
 * that was asked for is done; a number above 0 when more waits, at least so many bytes: pass on what was given and call
 * again with the same mode; or a negative narrows_status.
 * `input` and `output` are as they say, and not in the same memory.
 */
ptrdiff_t narrows_encode(struct narrows_encoder *encoder,
                         struct narrows_input *input,
                         struct narrows_output *output,
                         int32_t mode);

/**
 * Says that the link took `ns` nanoseconds for what the last call gave.
 */
narrows_status narrows_encoder_link_took(struct narrows_encoder *encoder, uint64_t ns);

/**
 * What was encoded so far.
 * `totals` is null or a place for the structure.
 */
narrows_status narrows_encoder_totals(struct narrows_encoder *encoder, struct narrows_totals *totals);

/**
 * Frees it, at any time.
 */
narrows_status narrows_encoder_free(struct narrows_encoder *encoder);

/**
 * A new decoder, of streams that no back channel is needed for; NULL is a failure. `options` may be NULL, or all zeros.
 * `options` is null or a structure as its struct_size says.
 */
struct narrows_decoder *narrows_decoder_new(const struct narrows_stream_options *options);

/**
 * Takes what it can of `input` and fills `output`, and moves their positions. Returns 0 when the stream is complete and all of
 * it was given; 1 when it is not: if `output` is full give more room, else more input; or a negative narrows_status, when
 * `output` may have got what came whole before. The first failure is final. Bytes behind the end of the stream are a failure.
 * `input` and `output` are as they say, and not in the same memory.
 */
ptrdiff_t narrows_decode(struct narrows_decoder *decoder,
                         struct narrows_input *input,
                         struct narrows_output *output);

/**
 * Says that no more input will come: NARROWS_ERROR_TRUNCATED if some is missing.
 */
narrows_status narrows_decoder_end(struct narrows_decoder *decoder);

/**
 * What was decoded so far.
 * `totals` is null or a place for the structure.
 */
narrows_status narrows_decoder_totals(struct narrows_decoder *decoder, struct narrows_totals *totals);

/**
 * Frees it, at any time.
 */
narrows_status narrows_decoder_free(struct narrows_decoder *decoder);

/**
 * A new end; NULL is a failure.
 * `options` is null or a structure as its struct_size says, and what it points to is there.
 */
struct narrows_messages *narrows_messages_new(const struct narrows_message_options *options);

/**
 * Encodes a message: `unit` is what has to be sent for it, all of it and in the order of the calls; on a carrier with borders as
 * one unit. The bytes belong to the end and are good until the next call with it. `sent` may be NULL. A message that is too
 * long (NARROWS_ERROR_LIMIT) leaves everything as it was. On a carrier with borders NARROWS_ERROR_MISUSE may say that
 * what narrows_message_next gives has to go first.
 * `message` has `len` bytes; `unit` and `sent` are null or places for such structures.
 */
narrows_status narrows_message_send(struct narrows_messages *messages,
                                    const void *message,
                                    size_t len,
                                    uint32_t flags,
                                    struct narrows_bytes *unit,
                                    struct narrows_sent *sent);

/**
 * The next unit that has to be sent without a message of the application: words to the peer, messages that it lost. Returns 1
 * if there is one, 0 if there is none, or a negative narrows_status. Call it until it returns 0 after every
 * narrows_message_receive, and on a carrier with borders before every narrows_message_send. With it an end that is idle for
 * long gives its memory back.
 * `unit` is null or a place for the structure.
 */
int32_t narrows_message_next(struct narrows_messages *messages,
                             struct narrows_bytes *unit);

/**
 * Reads one frame from the front of what came: on a carrier with borders of a unit, else of all that came and was not consumed.
 * `consumed` says how long it was: go on behind it while anything is left. Returns a narrows_front or a negative
 * narrows_status; for NARROWS_FRONT_MESSAGE `message` is the message, which belongs to the end and is good until the next call
 * with it. After a failure on a carrier without borders nothing behind it can be read.
 * `input` has `len` bytes; `consumed` and `message` are null or places for such values.
 */
int32_t narrows_message_receive(struct narrows_messages *messages,
                                const void *input,
                                size_t len,
                                size_t *consumed,
                                struct narrows_bytes *message);

/**
 * Tells the policy that the peer answered message `seq` `span_ns` nanoseconds after it was sent, in which `wire_len` bytes
 * crossed the link one after the other: those of the message, and of the answer if answers are of several lengths. From this it
 * learns what a byte costs; without it a link of 100 Mbit/s is assumed.
 */
narrows_status narrows_message_answered(struct narrows_messages *messages,
                                        uint64_t seq,
                                        size_t wire_len,
                                        uint64_t span_ns);

/**
 * Says that the carrier's connection is a new one: the peer knows nothing. What was under way may be lost.
 */
narrows_status narrows_message_reconnect(struct narrows_messages *messages);

/**
 * Offers a dictionary to the peer. Returns 1, 0 if the peer takes no such dictionary or could not say that it has it, or a negative
 * narrows_status.
 * `dictionary` has `len` bytes.
 */
int32_t narrows_message_offer(struct narrows_messages *messages,
                              const void *dictionary,
                              size_t len);

/**
 * What was sent and received so far. Either may be NULL.
 * Both are null or places for such structures.
 */
narrows_status narrows_message_totals(struct narrows_messages *messages,
                                      struct narrows_totals *sent,
                                      struct narrows_totals *received);

/**
 * Frees it, at any time.
 */
narrows_status narrows_messages_free(struct narrows_messages *messages);

/**
 * A new writer; NULL is a failure. Of the options policy, message_max and NARROWS_MESSAGES_LEARN apply.
 * `options` is null or a structure as its struct_size says, and what it points to is there.
 */
struct narrows_topic_writer *narrows_topic_writer_new(const struct narrows_message_options *options);

/**
 * Encodes a message: `unit` is what has to be published for it. The bytes belong to the writer and are good until the next call
 * with it. Publish what narrows_topic_announcement gives before.
 * `message` has `len` bytes; `unit` is null or a place for the structure.
 */
narrows_status narrows_topic_send(struct narrows_topic_writer *writer,
                                  const void *message,
                                  size_t len,
                                  struct narrows_bytes *unit);

/**
 * The unit that tells readers what they need, if one is due. Returns 1 if there is one, 0 if there is none, or a negative
 * narrows_status. Call it before every narrows_topic_send, and every second while nothing is sent.
 * `unit` is null or a place for the structure.
 */
int32_t narrows_topic_announcement(struct narrows_topic_writer *writer,
                                   struct narrows_bytes *unit);

/**
 * Says that a reader came, or may have come: the next announcement is due sooner.
 */
narrows_status narrows_topic_reader_came(struct narrows_topic_writer *writer);

/**
 * Uses a dictionary from elsewhere, once it was announced. Every reader sees it. Returns 1, 0 if it is not taken, or a negative
 * narrows_status.
 * `dictionary` has `len` bytes.
 */
int32_t narrows_topic_offer(struct narrows_topic_writer *writer,
                            const void *dictionary,
                            size_t len);

/**
 * Frees it, at any time.
 */
narrows_status narrows_topic_writer_free(struct narrows_topic_writer *writer);

/**
 * A new reader; NULL is a failure. Of the options message_max and known apply.
 * `options` is null or a structure as its struct_size says, and what it points to is there.
 */
struct narrows_topic_reader *narrows_topic_reader_new(const struct narrows_message_options *options);

/**
 * Takes a unit in; narrows_topic_next gives the messages that are complete then. A unit that is a failure is dropped, and the
 * next one can be taken. One that set messages free before it turned out bad is none: narrows_topic_missed counts it.
 * `unit` has `len` bytes.
 */
narrows_status narrows_topic_receive(struct narrows_topic_reader *reader,
                                     const void *unit,
                                     size_t len);

/**
 * The next message: none, one or several after every narrows_topic_receive, in the order in which they came. Returns 1 if there is
 * one, 0 if there is none, or a negative narrows_status. It belongs to the reader and is good until the next call with it.
 * `message` is null or a place for the structure.
 */
int32_t narrows_topic_next(struct narrows_topic_reader *reader,
                           struct narrows_bytes *message);

/**
 * What was left out so far: the application should hear of it.
 * `missed` is null or a place for the structure.
 */
narrows_status narrows_topic_missed(struct narrows_topic_reader *reader, struct narrows_missed *missed);

/**
 * Frees it, at any time.
 */
narrows_status narrows_topic_reader_free(struct narrows_topic_reader *reader);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* NARROWS_H */
