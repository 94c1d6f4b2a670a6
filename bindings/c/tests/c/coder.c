/* Encoding and decoding without I/O. */
#include "face.h"

static void code(const char *policy, size_t in_step, size_t out_step, int flush)
{
    static unsigned char wire[2 * LEN], raw[LEN];
    narrows_stream_options options = {.struct_size = sizeof options, .policy = policy};
    narrows_encoder *encoder = narrows_encoder_new(&options);
    narrows_decoder *decoder = narrows_decoder_new(NULL);
    CHECK(encoder != NULL && decoder != NULL);
    size_t len = out_step < 100 ? 30000 : LEN, wire_len = 0, raw_len = 0, decoded = 0;
    for (size_t at = 0; at <= len; at += in_step) {
        int32_t mode = at + in_step > len ? NARROWS_END : flush ? NARROWS_FLUSH : NARROWS_CONTINUE;
        narrows_input in = {data + at, at + in_step > len ? len - at : in_step, 0};
        ptrdiff_t waits;
        do {
            narrows_output out = {wire + wire_len, out_step < sizeof wire - wire_len ? out_step : sizeof wire - wire_len, 0};
            CHECK(out.size > 0);
            waits = narrows_encode(encoder, &in, &out, mode);
            CHECK(waits >= 0);
            wire_len += out.pos;
            narrows_encoder_link_took(encoder, out.pos * 80);
        } while (waits > 0);
        CHECK(in.pos == in.size);
        if (mode == NARROWS_CONTINUE)
            continue;
        /* Everything consumed so far can be decoded. */
        narrows_input from = {wire, wire_len, decoded};
        ptrdiff_t more;
        size_t before;
        do {
            narrows_output to = {raw + raw_len, out_step < sizeof raw - raw_len ? out_step : sizeof raw - raw_len, 0};
            before = from.pos;
            more = narrows_decode(decoder, &from, &to);
            CHECK(more >= 0);
            raw_len += to.pos;
            if (to.pos == 0 && from.pos == before)
                break;
        } while (more > 0);
        decoded = from.pos;
        CHECK(decoded == wire_len && raw_len == at + in.size);
        CHECK((more == 0) == (mode == NARROWS_END));
    }
    CHECK(raw_len == len && memcmp(raw, data, len) == 0);
    narrows_totals sent, received;
    CHECK(narrows_encoder_totals(encoder, &sent) == NARROWS_OK && sent.raw_bytes == len && sent.wire_bytes == wire_len);
    CHECK(narrows_decoder_totals(decoder, &received) == NARROWS_OK && memcmp(&sent, &received, sizeof sent) == 0);
    CHECK(narrows_decoder_end(decoder) == NARROWS_OK);
    narrows_input in = {data, 1, 0};
    narrows_output out = {wire, sizeof wire, 0};
    FAILS(narrows_encode(encoder, &in, &out, NARROWS_CONTINUE), NARROWS_ERROR_MISUSE, "ended");
    CHECK(narrows_encoder_free(encoder) == NARROWS_OK && narrows_decoder_free(decoder) == NARROWS_OK);
    FAILS(narrows_encode(encoder, &in, &out, NARROWS_CONTINUE), NARROWS_ERROR_CLOSED, "closed");
    FAILS(narrows_decode(decoder, &in, &out), NARROWS_ERROR_CLOSED, "closed");
}

/* Wire length under "balance" on a link with this time per byte. */
static uint64_t wire_len_at(uint64_t ns_per_byte)
{
    static unsigned char wire[2 * LEN];
    narrows_encoder *encoder = narrows_encoder_new(NULL);
    narrows_input in = {data, LEN, 0};
    narrows_totals totals;
    for (ptrdiff_t waits = 1; waits != 0;) {
        narrows_output out = {wire, 20000, 0};
        waits = narrows_encode(encoder, &in, &out, NARROWS_END);
        CHECK(waits >= 0);
        CHECK(narrows_encoder_link_took(encoder, out.pos * ns_per_byte) == NARROWS_OK);
    }
    CHECK(narrows_encoder_totals(encoder, &totals) == NARROWS_OK && totals.raw_bytes == LEN);
    CHECK(narrows_encoder_free(encoder) == NARROWS_OK);
    return totals.wire_bytes;
}

void test_coder(void)
{
    /* 2 Mbit/s against an instant link. */
    CHECK(wire_len_at(4000) < wire_len_at(0));
    code(NULL, 65536, 65536, 0);
    code("fixed:zstd", LEN, 2 * LEN, 0);
    code("fixed:zstd:level=1,link", 100000, 5000, 1);
    code("fixed:lz4", 300000, 700, 0);
    code("fixed:store", 997, 3, 1);
    code("stall", 400000, 100000, 0);
    code("adoc", 400000, 100000, 0);
    code("balance", 1000, 1, 1);
}

void test_coder_misuse(void)
{
    unsigned char buffer[100];
    narrows_encoder *encoder = narrows_encoder_new(NULL);
    narrows_decoder *decoder = narrows_decoder_new(NULL);
    narrows_input in = {data, 10, 0};
    narrows_output out = {buffer, sizeof buffer, 0};
    FAILS(narrows_encode(encoder, NULL, &out, 0), NARROWS_ERROR_MISUSE, "null");
    FAILS(narrows_encode(encoder, &in, NULL, 0), NARROWS_ERROR_MISUSE, "null");
    FAILS(narrows_encode(encoder, &in, &out, 3), NARROWS_ERROR_MISUSE, "not a narrows_mode");
    in.pos = 11;
    FAILS(narrows_encode(encoder, &in, &out, 0), NARROWS_ERROR_MISUSE, "position");
    in.pos = 0;
    out.pos = 101;
    FAILS(narrows_decode(decoder, &in, &out), NARROWS_ERROR_MISUSE, "position");
    out.pos = 0;
    in.data = NULL;
    FAILS(narrows_encode(encoder, &in, &out, 0), NARROWS_ERROR_MISUSE, "null");
    in.data = buffer;
    FAILS(narrows_encode(encoder, &in, &out, 0), NARROWS_ERROR_MISUSE, "overlap");
    in.data = data;
    out.data = NULL;
    FAILS(narrows_encode(encoder, &in, &out, 0), NARROWS_ERROR_MISUSE, "null");
    /* Nothing was consumed; empty buffers are allowed. */
    CHECK(in.pos == 0 && out.pos == 0);
    in.size = out.size = 0;
    CHECK(narrows_encode(encoder, &in, &out, NARROWS_FLUSH) > 0);
    CHECK(narrows_decode(decoder, &in, &out) == 1);
    FAILS(narrows_decoder_end(decoder), NARROWS_ERROR_TRUNCATED, "empty");
    CHECK(narrows_encoder_free(encoder) == NARROWS_OK && narrows_decoder_free(decoder) == NARROWS_OK);
    FAILS(narrows_encoder_free(encoder), NARROWS_ERROR_CLOSED, "closed");
}

void test_damaged_bytes(void)
{
    static unsigned char raw[60000];
    size_t len;
    unsigned char *wire = encoded(20000, "fixed:zstd", &len);
    for (size_t cut = 0; cut < len; cut += 1 + len / 300) {
        narrows_decoder *decoder = narrows_decoder_new(NULL);
        narrows_input in = {wire, cut, 0};
        narrows_output out = {raw, sizeof raw, 0};
        CHECK(narrows_decode(decoder, &in, &out) == 1);
        FAILS(narrows_decoder_end(decoder), NARROWS_ERROR_TRUNCATED, "stream");
        CHECK(narrows_decoder_free(decoder) == NARROWS_OK);
    }
    for (size_t at = 0; at < len; at += 1 + len / 300) {
        narrows_decoder *decoder = narrows_decoder_new(NULL);
        narrows_input in = {wire, len, 0};
        narrows_output out = {raw, sizeof raw, 0};
        wire[at] ^= 0x55;
        ptrdiff_t first = narrows_decode(decoder, &in, &out);
        CHECK(first < 0 || first == 1);
        CHECK(out.pos <= 20000 && memcmp(raw, data, out.pos) == 0);
        if (first < 0)
            CHECK(narrows_decode(decoder, &in, &out) == first);
        else
            CHECK(narrows_decoder_end(decoder) < 0);
        wire[at] ^= 0x55;
        CHECK(narrows_decoder_free(decoder) == NARROWS_OK);
    }
    wire = realloc(wire, len + 1);
    narrows_decoder *decoder = narrows_decoder_new(NULL);
    narrows_input in = {wire, len + 1, 0};
    narrows_output out = {raw, sizeof raw, 0};
    CHECK(narrows_decode(decoder, &in, &out) == NARROWS_ERROR_CORRUPT);
    CHECK(narrows_decoder_free(decoder) == NARROWS_OK);
    free(wire);

    /* The failing call still returns the bytes decoded before the error. */
    static unsigned char most[LEN];
    wire = encoded(LEN, "fixed:store", &len);
    wire[len - 1000] ^= 1;
    decoder = narrows_decoder_new(NULL);
    in = (narrows_input){wire, len, 0};
    out = (narrows_output){most, sizeof most, 0};
    CHECK(narrows_decode(decoder, &in, &out) == NARROWS_ERROR_CORRUPT);
    CHECK(out.pos > 0 && out.pos < LEN && memcmp(most, data, out.pos) == 0 && in.pos > 0);
    narrows_totals totals;
    CHECK(narrows_decoder_totals(decoder, &totals) == NARROWS_OK && totals.raw_bytes >= out.pos);
    size_t given = out.pos;
    CHECK(narrows_decode(decoder, &in, &out) == NARROWS_ERROR_CORRUPT && out.pos == given);
    CHECK(narrows_decoder_free(decoder) == NARROWS_OK);
    free(wire);
}
