/* Prints a range of a compressed file: pread FILE A-B, where A- goes to the end and -N is the last N
 * bytes, as with `narrows cat --range`. A file from `narrows FILE` is decoded there only. */
#include <errno.h>
#include <narrows.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

/* Parses decimal digits and moves `text` behind them. Returns 0 if there are none or too many. */
static int number(const char **text, uint64_t *value)
{
    char *end;
    if (**text < '0' || **text > '9')
        return 0;
    errno = 0;
    *value = strtoull(*text, &end, 10);
    *text = end;
    return errno == 0;
}

/* The range within a file of `size` bytes: [begin, end). Returns 0 if `text` is no range. */
static int parse(const char *text, uint64_t size, uint64_t *begin, uint64_t *end)
{
    uint64_t last = UINT64_MAX;
    if (*text == '-') {
        text++;
        if (!number(&text, &last) || *text != 0)
            return 0;
        *begin = size - (last < size ? last : size);
        *end = size;
        return 1;
    }
    if (!number(&text, begin) || *text++ != '-' || (*text != 0 && !number(&text, &last)) || *text != 0 || last < *begin)
        return 0;
    *end = last < size ? last + 1 : size;
    return 1;
}

int main(int argc, char **argv)
{
    static char buffer[1 << 18];
    uint64_t at, end;
    if (argc != 3) {
        fprintf(stderr, "usage: pread FILE A-B\n");
        return 2;
    }
    narrows_file *file = narrows_file_open(argv[1], NULL);
    if (file == NULL) {
        fprintf(stderr, "pread: %s\n", narrows_last_error());
        return 1;
    }
    int64_t size = narrows_file_size(file);
    if (size < 0 || !parse(argv[2], (uint64_t)size, &at, &end)) {
        fprintf(stderr, "pread: '%s' is not a range such as 0-499, 500- or -500\n", argv[2]);
        return 2;
    }
    narrows_status status = NARROWS_OK;
    while (status == NARROWS_OK && at < end) {
        size_t len = end - at < sizeof buffer ? (size_t)(end - at) : sizeof buffer, n;
        status = narrows_file_pread(file, buffer, len, at, &n);
        /* What stands before a damaged place is right, and printed too. */
        if (fwrite(buffer, 1, n, stdout) != n)
            break;
        at += n;
    }
    if (status != NARROWS_OK) {
        fprintf(stderr, "pread: %s\n", narrows_last_error());
        return 1;
    }
    if (fflush(stdout) != 0 || ferror(stdout)) {
        perror("pread: cannot write");
        return 1;
    }
    return narrows_file_close(file) == NARROWS_OK ? 0 : 1;
}
