/* Files that are read at any byte. */
#include "face.h"
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>

#define PIECE ((size_t)7000)
#define SMALL ((size_t)60000)

/* A compressed file in memory, behind a source. */
struct store {
    const unsigned char *wire;
    size_t len;
    int fails;    /* errno of every call, if not 0 */
    int too_many; /* claims more than was asked for */
    size_t most;  /* bytes of a call at most, if not 0 */
    unsigned calls;
    uint64_t asked; /* bytes, of all calls */
    pthread_mutex_t *gate; /* held by whoever keeps calls waiting */
    narrows_file *file;    /* closed from within a call */
};

static ptrdiff_t from_store(void *user, void *buffer, size_t len, uint64_t offset)
{
    struct store *store = user;
    __atomic_add_fetch(&store->calls, 1, __ATOMIC_SEQ_CST);
    __atomic_add_fetch(&store->asked, len, __ATOMIC_SEQ_CST);
    if (store->gate != NULL) {
        pthread_mutex_lock(store->gate);
        pthread_mutex_unlock(store->gate);
    }
    if (store->file != NULL)
        FAILS(narrows_file_close(store->file), NARROWS_ERROR_BUSY, "in a call");
    if (store->fails != 0) {
        errno = store->fails;
        return -1;
    }
    if (store->too_many)
        return (ptrdiff_t)len + 1;
    if (offset >= store->len)
        return 0;
    size_t n = store->len - (size_t)offset < len ? store->len - (size_t)offset : len;
    if (store->most != 0 && n > store->most)
        n = store->most;
    memcpy(buffer, store->wire + offset, n);
    return (ptrdiff_t)n;
}

static narrows_file *open_store(struct store *store, const narrows_file_options *options)
{
    return narrows_file_open_source(from_store, store, store->len, options);
}

/* The first `len` bytes of the data as a stream of blocks of PIECE bytes; the caller frees. */
static unsigned char *in_blocks(size_t len, uint32_t flags, const char *policy, size_t *wire_len)
{
    narrows_stream_options options = {.struct_size = sizeof options, .policy = policy, .flags = flags};
    narrows_encoder *encoder = narrows_encoder_new(&options);
    CHECK(encoder != NULL);
    size_t room = len + len / 10 + 100000;
    unsigned char *wire = malloc(room);
    narrows_output out = {wire, room, 0};
    ptrdiff_t waits;
    for (size_t at = 0; at < len; at += PIECE) {
        narrows_input in = {data + at, len - at < PIECE ? len - at : PIECE, 0};
        while ((waits = narrows_encode(encoder, &in, &out, NARROWS_FLUSH)) > 0)
            CHECK(out.pos < room);
        CHECK(waits == 0 && in.pos == in.size);
    }
    narrows_input none = {NULL, 0, 0};
    while ((waits = narrows_encode(encoder, &none, &out, NARROWS_END)) > 0)
        CHECK(out.pos < room);
    CHECK(waits == 0 && narrows_encoder_free(encoder) == NARROWS_OK);
    *wire_len = out.pos;
    return wire;
}

/* Reads a range, which must be that of the first `size` bytes of the data; nothing is written behind it. */
static void read_range(narrows_file *file, size_t size, size_t at, size_t len)
{
    unsigned char *got = malloc(len + 1);
    size_t n = 77, there = at < size ? size - at : 0;
    memset(got, 0xa5, len + 1);
    CHECK(narrows_file_pread(file, got, len, at, &n) == NARROWS_OK);
    CHECK(n == (there < len ? there : len));
    CHECK(n == 0 || memcmp(got, data + at, n) == 0);
    for (size_t i = n; i <= len; i++)
        CHECK(got[i] == 0xa5);
    free(got);
}

static uint32_t next_random(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

static void read_ranges(narrows_file *file, size_t size, int count, uint32_t seed)
{
    CHECK(narrows_file_size(file) == (int64_t)size);
    for (int i = 0; i < count; i++) {
        size_t at = next_random(&seed) % (size + 10), len = next_random(&seed) % 20000;
        read_range(file, size, at, len);
    }
    read_range(file, size, size - 1, 1);
    read_range(file, size, size, 5);
    read_range(file, size, size + 1, 5);
    read_range(file, size, size / 2, 0);
    read_range(file, size, size - 10, 1000000);
}

void test_files(void)
{
    char path[] = "/tmp/narrows-\xff-XXXXXX";
    int fd = mkstemp(path);
    CHECK(fd >= 0);
    struct job job = start_writer(fd, LEN, NARROWS_INDEX, "fixed:zstd:level=1");
    write_all(&job);
    CHECK(job.status == NARROWS_OK);
    narrows_file *file = narrows_file_open(path, NULL);
    CHECK(file != NULL);
    read_range(file, LEN, 0, LEN + 5);
    read_ranges(file, LEN, 20, 1);
    CHECK(narrows_file_close(file) == NARROWS_OK);

    /* By a descriptor, which is the caller's again at once, and whose position stays. */
    CHECK(lseek(fd, 5, SEEK_SET) == 5);
    file = narrows_file_open_fd(fd, NULL);
    CHECK(file != NULL && lseek(fd, 0, SEEK_CUR) == 5);
    /* A file that becomes shorter is noticed where it is read. */
    CHECK(unlink(path) == 0 && ftruncate(fd, 1000) == 0);
    size_t n = 77;
    static unsigned char got[LEN];
    FAILS(narrows_file_pread(file, got, LEN, 0, &n), NARROWS_ERROR_TRUNCATED, "fewer bytes");
    CHECK(n < LEN && memcmp(got, data, n) == 0);
    close(fd);
    CHECK(narrows_file_close(file) == NARROWS_OK);

    /* Of other kinds: without index, linked, empty, two behind one another, from a slow source. */
    static const struct {
        const char *policy;
        uint32_t flags;
    } kinds[] = {{"fixed:lz4", NARROWS_INDEX}, {"fixed:lz4", 0}, {"fixed:zstd:level=1,link", NARROWS_INDEX},
                 {"fixed:zstd:level=1,link", 0}, {"fixed:store", NARROWS_INDEX | NARROWS_NO_CHECK}};
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        struct store store = {.most = i == 0 ? 999 : 0};
        unsigned char *wire = in_blocks(SMALL, kinds[i].flags, kinds[i].policy, &store.len);
        store.wire = wire;
        file = open_store(&store, NULL);
        CHECK(file != NULL);
        read_ranges(file, SMALL, 20, (uint32_t)i);
        CHECK(narrows_file_close(file) == NARROWS_OK);
        /* Twice: the content is there twice. */
        wire = realloc(wire, 2 * store.len);
        memcpy(wire + store.len, wire, store.len);
        store.wire = wire;
        store.len *= 2;
        file = open_store(&store, NULL);
        CHECK(file != NULL && narrows_file_size(file) == 2 * (int64_t)SMALL);
        CHECK(narrows_file_pread(file, got, 1000, SMALL - 500, &n) == NARROWS_OK && n == 1000);
        CHECK(memcmp(got, data + SMALL - 500, 500) == 0 && memcmp(got + 500, data, 500) == 0);
        CHECK(narrows_file_close(file) == NARROWS_OK);
        free(wire);
    }
    struct store empty = {0};
    unsigned char *wire = in_blocks(0, NARROWS_INDEX, "fixed:lz4", &empty.len);
    empty.wire = wire;
    file = open_store(&empty, NULL);
    CHECK(file != NULL && narrows_file_size(file) == 0);
    CHECK(narrows_file_pread(file, got, 10, 0, &n) == NARROWS_OK && n == 0);
    CHECK(narrows_file_close(file) == NARROWS_OK);
    free(wire);
}

/* Where blocks refer to earlier ones, a writer with an index makes places to begin at. */
void test_places_to_begin_at(void)
{
    narrows_stream_options options = {.struct_size = sizeof options, .policy = "fixed:zstd:level=1,link"};
    options.flags = NARROWS_INDEX;
    narrows_encoder *encoder = narrows_encoder_new(&options);
    size_t room = 6 * LEN;
    unsigned char *wire = malloc(room), byte;
    narrows_output out = {wire, room, 0};
    ptrdiff_t waits;
    for (int i = 0; i < 5; i++) {
        narrows_input in = {data, LEN, 0};
        while ((waits = narrows_encode(encoder, &in, &out, i < 4 ? NARROWS_CONTINUE : NARROWS_END)) > 0)
            CHECK(out.pos < room);
        CHECK(waits == 0 && in.pos == LEN);
    }
    CHECK(narrows_encoder_free(encoder) == NARROWS_OK);
    struct store store = {.wire = wire, .len = out.pos};
    narrows_file *file = open_store(&store, NULL);
    size_t n;
    CHECK(file != NULL && narrows_file_size(file) == 5 * (int64_t)LEN);
    store.asked = 0;
    CHECK(narrows_file_pread(file, &byte, 1, 5 * LEN - 1, &n) == NARROWS_OK && n == 1 && byte == data[LEN - 1]);
    CHECK(store.asked < store.len / 2);
    CHECK(narrows_file_close(file) == NARROWS_OK);
    free(wire);
}

/* The options have an effect: blocks are kept or not, and longer ones than allowed are refused. */
void test_file_options(void)
{
    struct store store = {0};
    unsigned char *wire = in_blocks(SMALL, NARROWS_INDEX, "fixed:lz4", &store.len);
    store.wire = wire;
    narrows_file_options options = {.struct_size = sizeof options};
    for (int keeps = 0; keeps < 2; keeps++) {
        options.cache_max = keeps ? 0 : 1;
        narrows_file *file = open_store(&store, &options);
        CHECK(file != NULL);
        read_range(file, SMALL, 0, SMALL);
        unsigned before = store.calls;
        read_range(file, SMALL, 0, SMALL);
        CHECK((store.calls == before) == keeps);
        CHECK(narrows_file_close(file) == NARROWS_OK);
    }
    options.cache_max = 0;
    options.block_max = 100;
    NO_OBJECT(open_store(&store, &options), NARROWS_ERROR_LIMIT, "block_max");
    options.struct_size = 1;
    NO_OBJECT(open_store(&store, &options), NARROWS_ERROR_MISUSE, "struct_size");
    /* A caller with an older header has no block_max. */
    options.struct_size = offsetof(narrows_file_options, block_max);
    narrows_file *file = open_store(&store, &options);
    CHECK(file != NULL && narrows_file_close(file) == NARROWS_OK);
    free(wire);
}

void test_file_misuse(void)
{
    int fds[2], local = 0;
    char byte[4] = {0};
    size_t n = 77;
    struct store store = {0};
    unsigned char *wire = in_blocks(SMALL, NARROWS_INDEX, "fixed:lz4", &store.len);
    store.wire = wire;

    NO_OBJECT(narrows_file_open(NULL, NULL), NARROWS_ERROR_MISUSE, "null");
    NO_OBJECT(narrows_file_open("/nonexistent/a.nrw", NULL), NARROWS_ERROR_IO, "/nonexistent/a.nrw: No such file");
    NO_OBJECT(narrows_file_open("/nonexistent/a\nb", NULL), NARROWS_ERROR_IO, "/nonexistent/a?b");
    NO_OBJECT(narrows_file_open("", NULL), NARROWS_ERROR_IO, "No such file");
    NO_OBJECT(narrows_file_open("/", NULL), NARROWS_ERROR_MISUSE, "no regular file");
    NO_OBJECT(narrows_file_open("/dev/null", NULL), NARROWS_ERROR_MISUSE, "no regular file");
    NO_OBJECT(narrows_file_open_fd(-1, NULL), NARROWS_ERROR_MISUSE, "-1");
    NO_OBJECT(narrows_file_open_fd(7654, NULL), NARROWS_ERROR_MISUSE, "not open");
    CHECK(pipe(fds) == 0);
    NO_OBJECT(narrows_file_open_fd(fds[0], NULL), NARROWS_ERROR_MISUSE, "narrows_reader_open");
    NO_OBJECT(narrows_file_open_fd(fds[1], NULL), NARROWS_ERROR_MISUSE, "not open for reading");
    close(fds[0]);
    close(fds[1]);
    pair(fds);
    NO_OBJECT(narrows_file_open_fd(fds[0], NULL), NARROWS_ERROR_MISUSE, "narrows_reader_open");
    close(fds[0]);
    close(fds[1]);
    /* A named pipe without a writer is refused at once. */
    char path[] = "/tmp/narrows-XXXXXX";
    CHECK(mkdtemp(path) != NULL);
    char fifo[sizeof path + 10];
    snprintf(fifo, sizeof fifo, "%s/fifo", path);
    CHECK(mkfifo(fifo, 0600) == 0);
    NO_OBJECT(narrows_file_open(fifo, NULL), NARROWS_ERROR_MISUSE, "no regular file");
    CHECK(unlink(fifo) == 0 && rmdir(path) == 0);

    NO_OBJECT(narrows_file_open_source(NULL, &store, 1, NULL), NARROWS_ERROR_MISUSE, "source is a null pointer");
    NO_OBJECT(narrows_file_open_source(from_store, &store, (uint64_t)-1, NULL), NARROWS_ERROR_MISUSE, "negative");
    CHECK(store.calls == 0);
    struct store other = {.wire = (const unsigned char *)"", .len = 0};
    NO_OBJECT(open_store(&other, NULL), NARROWS_ERROR_TRUNCATED, "empty");
    other = (struct store){.wire = data + 10001, .len = 5000};
    CHECK(open_store(&other, NULL) == NULL && narrows_last_status() <= NARROWS_ERROR_CORRUPT);
    other = (struct store){.wire = (const unsigned char *)"\x1f\x8b\x08\0\0\0\0\0\0\0", .len = 10};
    NO_OBJECT(open_store(&other, NULL), NARROWS_ERROR_UNSUPPORTED, "gzip");
    /* Stated longer or shorter than it is. */
    NO_OBJECT(narrows_file_open_source(from_store, &store, store.len + 1, NULL), NARROWS_ERROR_TRUNCATED, "fewer bytes");
    CHECK(narrows_file_open_source(from_store, &store, store.len - 1, NULL) == NULL);
    CHECK(narrows_last_status() == NARROWS_ERROR_TRUNCATED || narrows_last_status() == NARROWS_ERROR_CORRUPT);
    store.too_many = 1;
    NO_OBJECT(open_store(&store, NULL), NARROWS_ERROR_IO, "the source claims");
    store.too_many = 0;
    store.fails = EACCES;
    NO_OBJECT(open_store(&store, NULL), NARROWS_ERROR_IO, "Permission denied");
    store.fails = 0;

    narrows_file *file = open_store(&store, NULL);
    CHECK(file != NULL);
    FAILS(narrows_file_pread(file, byte, 1, 0, NULL), NARROWS_ERROR_MISUSE, "read_len is a null");
    FAILS(narrows_file_pread(file, NULL, 1, 0, &n), NARROWS_ERROR_MISUSE, "buffer is a null");
    CHECK(n == 0);
    n = 77;
    FAILS(narrows_file_pread(file, byte, SIZE_MAX, 0, &n), NARROWS_ERROR_MISUSE, "impossible length");
    FAILS(narrows_file_pread(file, byte, 1, (uint64_t)-1, &n), NARROWS_ERROR_MISUSE, "negative");
    CHECK(n == 0 && narrows_file_pread(file, NULL, 0, 0, &n) == NARROWS_OK && n == 0);
    CHECK(narrows_file_pread(file, byte, 1, INT64_MAX, &n) == NARROWS_OK && n == 0);
    FAILS(narrows_file_pread(NULL, byte, 1, 0, &n), NARROWS_ERROR_MISUSE, "the file is a null pointer");
    FAILS(narrows_file_size(NULL), NARROWS_ERROR_MISUSE, "null");
    FAILS(narrows_file_close(NULL), NARROWS_ERROR_MISUSE, "null");
    FAILS(narrows_file_size((narrows_file *)&local), NARROWS_ERROR_MISUSE, "never returned");
    FAILS(narrows_read((narrows_reader *)file, byte, 1), NARROWS_ERROR_MISUSE, "invalid reader handle");
    /* The source fails once; the file goes on. */
    store.fails = EIO;
    FAILS(narrows_file_pread(file, byte, 1, 0, &n), NARROWS_ERROR_IO, strerror(EIO));
    store.fails = 0;
    read_ranges(file, SMALL, 3, 9);
    CHECK(narrows_file_close(file) == NARROWS_OK);
    FAILS(narrows_file_close(file), NARROWS_ERROR_CLOSED, "closed");
    FAILS(narrows_file_size(file), NARROWS_ERROR_CLOSED, "closed");
    n = 77;
    FAILS(narrows_file_pread(file, byte, 1, 0, &n), NARROWS_ERROR_CLOSED, "closed");
    CHECK(n == 0);
    free(wire);
}

/* Reads all pieces of a file that may be damaged: each is right, or is refused and nothing of it is
 * written. Returns the number of pieces that are right. */
static size_t right_pieces(narrows_file *file, size_t size)
{
    size_t right = 0, n;
    for (size_t at = 0; at < size; at += PIECE) {
        unsigned char got[PIECE + 1];
        size_t len = size - at < PIECE ? size - at : PIECE;
        memset(got, 0xa5, sizeof got);
        narrows_status status = narrows_file_pread(file, got, len, at, &n);
        CHECK(status == NARROWS_OK || status == NARROWS_ERROR_CORRUPT || status == NARROWS_ERROR_TRUNCATED ||
              status == NARROWS_ERROR_UNSUPPORTED || status == NARROWS_ERROR_LIMIT);
        CHECK(n <= len && memcmp(got, data + at, n) == 0);
        CHECK(status != NARROWS_OK || n == len);
        for (size_t i = n; i < sizeof got; i++)
            CHECK(got[i] == 0xa5);
        right += status == NARROWS_OK;
    }
    return right;
}

void test_damaged_files(void)
{
    for (int linked = 0; linked < 2; linked++) {
        struct store store = {0};
        size_t len, refused = 0, pieces = (SMALL + PIECE - 1) / PIECE;
        unsigned char *wire = in_blocks(SMALL, NARROWS_INDEX, linked ? "fixed:zstd:level=1,link" : "fixed:lz4", &len);
        store.wire = wire;
        /* Cut off anywhere, it is refused. */
        for (size_t cut = 0; cut < len; cut += cut < 40 || cut + 100 > len ? 1 : 397) {
            store.len = cut;
            CHECK(open_store(&store, NULL) == NULL);
            narrows_status status = narrows_last_status();
            CHECK(status == NARROWS_ERROR_TRUNCATED || status == NARROWS_ERROR_CORRUPT);
        }
        /* A bit is another anywhere: what is read is right, and most of it is still there. */
        store.len = len;
        for (size_t at = 0; at < len; at += at < 40 || at + 60 > len ? 7 : 2503) {
            wire[at] ^= (unsigned char)(1 << at % 8);
            narrows_file *file = open_store(&store, NULL);
            if (file != NULL) {
                size_t right = narrows_file_size(file) == (int64_t)SMALL ? right_pieces(file, SMALL) : 0;
                CHECK(linked || right + 1 >= pieces);
                refused += right < pieces;
                CHECK(narrows_file_close(file) == NARROWS_OK);
            }
            wire[at] ^= (unsigned char)(1 << at % 8);
        }
        CHECK(refused > 0);
        /* Across a damaged block: the bytes before it, and the error. */
        wire[len / 2] ^= 1;
        narrows_file *file = open_store(&store, NULL);
        CHECK(file != NULL);
        static unsigned char got[SMALL];
        size_t n = 0;
        FAILS(narrows_file_pread(file, got, SMALL, 0, &n), NARROWS_ERROR_CORRUPT, "frame");
        CHECK(n > 0 && n < SMALL && n % PIECE == 0 && memcmp(got, data, n) == 0);
        CHECK(narrows_file_close(file) == NARROWS_OK);
        free(wire);
    }
}

static narrows_file *common;

static void *reads_ranges(void *seed)
{
    read_ranges(common, SMALL, 100, (uint32_t)(size_t)seed);
    return NULL;
}

static void *reads_a_byte(void *got)
{
    size_t n;
    return (void *)(long)narrows_file_pread(common, got, 1, 0, &n);
}

/* Opens, reads and closes what other threads close: every call completes or is refused. */
static void *closes_files(void *store)
{
    for (int i = 0; i < 100; i++) {
        size_t n;
        char byte;
        narrows_file *mine = __atomic_load_n(&common, __ATOMIC_SEQ_CST);
        narrows_status status = narrows_file_pread(mine, &byte, 1, 1, &n);
        CHECK(status == NARROWS_OK ? byte == (char)data[1] : status == NARROWS_ERROR_CLOSED);
        status = narrows_file_close(mine);
        CHECK(status == NARROWS_OK || status == NARROWS_ERROR_CLOSED || status == NARROWS_ERROR_BUSY);
        if (status == NARROWS_OK)
            __atomic_store_n(&common, open_store(store, NULL), __ATOMIC_SEQ_CST);
    }
    return NULL;
}

void test_threads_on_a_file(void)
{
    pthread_t all[8];
    pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;
    for (int linked = 0; linked < 2; linked++) {
        struct store store = {0};
        unsigned char *wire = in_blocks(SMALL, NARROWS_INDEX, linked ? "fixed:zstd:level=1,link" : "fixed:lz4", &store.len);
        store.wire = wire;
        /* Little is kept, so that most reads decode. */
        narrows_file_options options = {.struct_size = sizeof options, .cache_max = 3 * PIECE};
        common = open_store(&store, &options);
        CHECK(common != NULL);
        for (size_t i = 0; i < 8; i++)
            CHECK(pthread_create(&all[i], NULL, reads_ranges, (void *)(i + 1)) == 0);
        for (int i = 0; i < 8; i++)
            CHECK(pthread_join(all[i], NULL) == 0);
        CHECK(narrows_file_close(common) == NARROWS_OK);

        /* Two calls are in the source at once; meanwhile the file cannot be closed. */
        common = open_store(&store, NULL);
        CHECK(pthread_mutex_lock(&gate) == 0);
        store.calls = 0;
        store.gate = &gate;
        unsigned char got[2] = {0, 0};
        for (int i = 0; i < 2; i++)
            CHECK(pthread_create(&all[i], NULL, reads_a_byte, &got[i]) == 0);
        for (int i = 0; __atomic_load_n(&store.calls, __ATOMIC_SEQ_CST) < 2; i++) {
            CHECK(i < 30000);
            pause_ms(1);
        }
        FAILS(narrows_file_close(common), NARROWS_ERROR_BUSY, "in a call with this file");
        CHECK(narrows_file_size(common) == (int64_t)SMALL);
        CHECK(pthread_mutex_unlock(&gate) == 0);
        for (int i = 0; i < 2; i++) {
            void *status;
            CHECK(pthread_join(all[i], &status) == 0 && status == NULL && got[i] == data[0]);
        }
        CHECK(narrows_file_close(common) == NARROWS_OK);
        store.gate = NULL;

        common = open_store(&store, NULL);
        for (int i = 0; i < 4; i++)
            CHECK(pthread_create(&all[i], NULL, closes_files, &store) == 0);
        for (int i = 0; i < 4; i++)
            CHECK(pthread_join(all[i], NULL) == 0);
        /* A source that closes its own file is refused, instead of waiting for itself. */
        store.file = common;
        read_range(common, SMALL, 0, 10);
        CHECK(narrows_file_close(common) == NARROWS_OK);
        store.file = NULL;

        common = open_store(&store, NULL);
        pid_t child = fork();
        int status;
        CHECK(child >= 0);
        if (child == 0) {
            size_t n;
            alarm(60);
            FAILS(narrows_file_pread(common, got, 1, 0, &n), NARROWS_ERROR_MISUSE, "fork");
            FAILS(narrows_file_size(common), NARROWS_ERROR_MISUSE, "fork");
            FAILS(narrows_file_close(common), NARROWS_ERROR_MISUSE, "fork");
            raise(SIGKILL);
        }
        CHECK(waitpid(child, &status, 0) == child && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
        read_range(common, SMALL, 0, 10);
        CHECK(narrows_file_close(common) == NARROWS_OK);
        free(wire);
    }
}

int be_file_reader(const char *path)
{
    narrows_file *file = narrows_file_open(path, NULL);
    CHECK(file != NULL);
    read_range(file, LEN, 0, LEN);
    read_ranges(file, LEN, 30, 4);
    CHECK(narrows_file_close(file) == NARROWS_OK);
    return 0;
}
