/* Whole streams in one call, and coders that are used again. */
#include "face.h"

static const char *const policies[] = {NULL, "balance", "fixed:store", "fixed:lz4", "fixed:zstd:level=3,link", "fixed:constant"};

void test_once(void)
{
    static const size_t lens[] = {0, 1, 100, 4096, 70000, 262144, LEN};
    static unsigned char raw[LEN];
    for (size_t p = 0; p < sizeof policies / sizeof policies[0]; p++) {
        for (size_t i = 0; i < sizeof lens / sizeof lens[0]; i++) {
            for (uint32_t flags = 0; flags <= (NARROWS_INDEX | NARROWS_NO_CHECK); flags += NARROWS_NO_CHECK) {
                /* The last third of each 30,000 bytes is noise. */
                const unsigned char *from = lens[i] <= 10000 ? data + 20000 : data;
                narrows_stream_options options = {sizeof options, policies[p], flags, 0, 0, 0, 0};
                size_t room = narrows_compress_bound(lens[i]);
                unsigned char *wire = malloc(room);
                ptrdiff_t n = narrows_compress(wire, room, from, lens[i], &options);
                CHECK(n > 0 && (size_t)n <= room);
                CHECK(narrows_content_len(wire, (size_t)n) == (int64_t)lens[i]);
                CHECK(narrows_decompress(raw, lens[i], wire, (size_t)n) == (ptrdiff_t)lens[i]);
                CHECK(memcmp(raw, from, lens[i]) == 0);
                /* One byte less of room. What "balance" writes depends on the time. */
                if (policies[p] != policies[1]) {
                    FAILS(narrows_compress(wire, (size_t)n - 1, from, lens[i], &options), NARROWS_ERROR_LIMIT, "too short");
                    CHECK(narrows_compress(wire, (size_t)n, from, lens[i], &options) == n);
                }
                free(wire);
            }
        }
    }
    CHECK(narrows_compress_bound(SIZE_MAX) == 0);
    CHECK(narrows_version_number() == NARROWS_VERSION_NUMBER);
}

void test_once_misuse(void)
{
    static unsigned char raw[30000];
    unsigned char wire[40000];
    narrows_stream_options options = {sizeof options, "no-such-policy", 0, 0, 0, 0, 0};
    FAILS(narrows_compress(wire, sizeof wire, data, 100, &options), NARROWS_ERROR_MISUSE, "no-such-policy");
    options.policy = NULL;
    options.flags = NARROWS_ONE_WAY;
    FAILS(narrows_compress(wire, sizeof wire, data, 100, &options), NARROWS_ERROR_MISUSE, "flags");
    FAILS(narrows_compress(wire, sizeof wire, NULL, 100, NULL), NARROWS_ERROR_MISUSE, "null");
    FAILS(narrows_compress(NULL, 100, data, 100, NULL), NARROWS_ERROR_MISUSE, "null");
    FAILS(narrows_compress(data + 50, 100, data, 100, NULL), NARROWS_ERROR_MISUSE, "overlap");
    ptrdiff_t n = narrows_compress(wire, sizeof wire, data, sizeof raw, NULL);
    CHECK(n > 0);
    FAILS(narrows_decompress(raw, sizeof raw - 1, wire, (size_t)n), NARROWS_ERROR_LIMIT, "too short");
    FAILS(narrows_decompress(raw, 0, wire, (size_t)n), NARROWS_ERROR_LIMIT, "too short");
    FAILS(narrows_decompress(raw, sizeof raw, NULL, (size_t)n), NARROWS_ERROR_MISUSE, "null");
    FAILS(narrows_decompress(raw, sizeof raw, wire, (size_t)n + 1), NARROWS_ERROR_CORRUPT, "");
    CHECK(narrows_content_len(wire, (size_t)n + 1) < 0);
    CHECK(narrows_content_len(NULL, 0) == NARROWS_ERROR_TRUNCATED);
    for (size_t cut = 0; cut < (size_t)n; cut += 1 + (size_t)n / 300) {
        FAILS(narrows_decompress(raw, sizeof raw, wire, cut), NARROWS_ERROR_TRUNCATED, "");
        CHECK(narrows_content_len(wire, cut) < 0);
    }
    for (size_t at = 0; at < (size_t)n; at += 1 + (size_t)n / 300) {
        wire[at] ^= 0x55;
        CHECK(narrows_decompress(raw, sizeof raw, wire, (size_t)n) < 0);
        wire[at] ^= 0x55;
    }
    /* The end of one stream behind another one. */
    memmove(wire + n, wire, (size_t)n < sizeof wire - (size_t)n ? (size_t)n : sizeof wire - (size_t)n);
    if (2 * (size_t)n <= sizeof wire)
        FAILS(narrows_content_len(wire, 2 * (size_t)n), NARROWS_ERROR_CORRUPT, "one whole stream");
}

/* Encodes the first `len` bytes. */
static size_t encode(narrows_encoder *encoder, size_t len, unsigned char *wire, size_t room, narrows_mode mode)
{
    narrows_input in = {data, len, 0};
    narrows_output out = {wire, room, 0};
    CHECK(narrows_encode(encoder, &in, &out, mode) >= 0 && in.pos == len);
    return out.pos;
}

void test_used_again(void)
{
    static unsigned char wire[2 * LEN], again[2 * LEN], raw[LEN];
    narrows_stream_options options = {sizeof options, "fixed:zstd:level=3,link", 0, 0, 0, 0, 0};
    narrows_encoder *encoder = narrows_encoder_new(&options);
    narrows_decoder *decoder = narrows_decoder_new(NULL);
    size_t n = encode(encoder, 700000, wire, sizeof wire, NARROWS_END);
    for (int i = 0; i < 3; i++) {
        narrows_totals totals;
        /* Given up in the middle, then a whole stream, which is as the first one. */
        CHECK(narrows_encoder_reset(encoder, &options) == NARROWS_OK);
        encode(encoder, 300000, again, sizeof again, NARROWS_FLUSH);
        CHECK(narrows_encoder_reset(encoder, &options) == NARROWS_OK);
        CHECK(encode(encoder, 700000, again, sizeof again, NARROWS_END) == n && memcmp(again, wire, n) == 0);
        CHECK(narrows_encoder_totals(encoder, &totals) == NARROWS_OK && totals.raw_bytes == 700000);
        /* A torn stream, a damaged one, then a whole one. */
        narrows_input in = {wire, n / 2, 0};
        narrows_output out = {raw, sizeof raw, 0};
        CHECK(narrows_decode(decoder, &in, &out) == 1);
        CHECK(narrows_decoder_reset(decoder) == NARROWS_OK);
        again[n / 2] ^= 1;
        in = (narrows_input){again, n, 0};
        out.pos = 0;
        CHECK(narrows_decode(decoder, &in, &out) < 0);
        CHECK(narrows_decoder_reset(decoder) == NARROWS_OK);
        in = (narrows_input){wire, n, 0};
        out.pos = 0;
        CHECK(narrows_decode(decoder, &in, &out) == 0 && out.pos == 700000 && memcmp(raw, data, out.pos) == 0);
        CHECK(narrows_decoder_reset(decoder) == NARROWS_OK);
    }
    options.policy = "no-such-policy";
    FAILS(narrows_encoder_reset(encoder, &options), NARROWS_ERROR_MISUSE, "no-such-policy");
    CHECK(narrows_encoder_free(encoder) == NARROWS_OK && narrows_decoder_free(decoder) == NARROWS_OK);
    FAILS(narrows_encoder_reset(encoder, NULL), NARROWS_ERROR_CLOSED, "closed");
    FAILS(narrows_decoder_reset(decoder), NARROWS_ERROR_CLOSED, "closed");
}
