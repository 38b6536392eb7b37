#define _GNU_SOURCE // readahead, MADV_HUGEPAGE

#include "reader.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifdef __linux__
#include <sys/mman.h>
#include <sys/syscall.h>
#endif

struct corral_reader {
    pthread_t              thread;
    pthread_mutex_t        mutex; // over all below it but what never changes
    pthread_cond_t         wake;
    corral_reader_progress progress;
    bool                   again;
    bool                   stopping;

    uint64_t          piece;
    uint64_t          ahead; // 0: pieces are brought in huge pages
    uint64_t          n;
    corral_file_range ranges[];
};

// A place in the ranges, between two pieces.
typedef struct {
    uint64_t range;
    uint64_t offset; // in the range
} cursor;

static uint64_t min(uint64_t a, uint64_t b) {
    return a < b ? a : b;
}

// The kernel reads no more than the device's read-ahead for one call, hence the pieces. The call
// returns when the reads are queued.
static void ask(int fd, uint64_t offset, uint64_t length) {
#ifdef __APPLE__
    struct radvisory wanted = { .ra_offset = (off_t) offset, .ra_count = (int) length };
    fcntl(fd, F_RDADVISE, &wanted);
#else
    readahead(fd, (off_t) offset, length);
#endif
}

// Waits until a piece is cached, which it is when its last byte is. 0, or an errno.
static int await(corral_file_range piece) {
    char last;
    ssize_t got;
    do {
        got = pread(piece.fd, &last, 1, (off_t) (piece.offset + piece.length - 1));
    } while (got < 0 && errno == EINTR);
    return got == 1 ? 0 : got < 0 ? errno : ENODATA;
}

// Reads a piece by faults in a mapping of its own that asks for huge pages: of all ways to read,
// the only one that makes the kernel put 2 MiB of a file into one page, whatever the device's
// read-ahead is. False where the kernel will not, or the file has no such bytes.
static bool bring_huge(corral_file_range piece) {
#ifdef __linux__
    const int populate = 22; // MADV_POPULATE_READ, since 5.14; some libcs have no name for it
    const uint64_t start  = piece.offset - piece.offset % (uint64_t) sysconf(_SC_PAGESIZE);
    const uint64_t length = piece.offset + piece.length - start;
    void * at = mmap(NULL, length, PROT_READ, MAP_SHARED, piece.fd, (off_t) start);
    if (at == MAP_FAILED) {
        return false;
    }
    const bool brought =
        madvise(at, length, MADV_HUGEPAGE) == 0 && madvise(at, length, populate) == 0;
    munmap(at, length);
    return brought;
#else
    (void) piece;
    return false;
#endif
}

// Whether every page is cached; false where the kernel will not tell.
static bool cached(const corral_file_range * range) {
#ifdef __linux__
    // SYS_cachestat, since 6.5; the same number on every architecture but alpha.
    const long syscall_number = 451;
    struct { uint64_t offset, length; } asked = { range->offset, range->length };
    struct { uint64_t cached, dirty, writeback, evicted, recently_evicted; } told;
    if (syscall(syscall_number, range->fd, &asked, &told, 0) != 0) {
        return false;
    }
    const uint64_t page = (uint64_t) sysconf(_SC_PAGESIZE);
    const uint64_t end  = range->offset + range->length;
    return told.cached >= (end + page - 1) / page - range->offset / page;
#else
    (void) range;
    return false;
#endif
}

// The piece at the cursor, which moves behind it. Its length is 0 at the end of the ranges.
static corral_file_range next_piece(const corral_reader * reader, cursor * at) {
    corral_file_range piece = { 0, 0, -1 };
    while (at->range < reader->n && at->offset == reader->ranges[at->range].length) {
        *at = (cursor) { at->range + 1, 0 };
    }
    if (at->range < reader->n) {
        const corral_file_range * range = &reader->ranges[at->range];
        piece.fd     = range->fd;
        piece.offset = range->offset + at->offset;
        // ends where huge pages may
        piece.length = min(reader->piece - piece.offset % reader->piece, range->length - at->offset);
        at->offset += piece.length;
    }
    return piece;
}

// Passes over ranges that are cached. Asking again for what is there costs little, but a model
// that has not lost a page should cost nothing.
static uint64_t skip_cached(const corral_reader * reader, cursor * at) {
    uint64_t skipped = 0;
    while (at->range < reader->n && at->offset == 0 && cached(&reader->ranges[at->range])) {
        skipped += reader->ranges[at->range].length;
        *at = (cursor) { at->range + 1, 0 };
    }
    return skipped;
}

// Whether to go on.
static bool tell(corral_reader * reader, uint64_t read, int error) {
    pthread_mutex_lock(&reader->mutex);
    reader->progress.read += read;
    reader->progress.error = error;
    const bool go_on = !reader->stopping && error == 0;
    pthread_mutex_unlock(&reader->mutex);
    return go_on;
}

static void pass(corral_reader * reader) {
    cursor   asked = { 0, 0 }, awaited = { 0, 0 };
    uint64_t under_way = 0;
    for (;;) {
        if (under_way == 0) {
            if (!tell(reader, skip_cached(reader, &asked), 0)) {
                return;
            }
            awaited = asked;
        }
        while (under_way < (reader->ahead ? reader->ahead : 1)) {
            const corral_file_range piece = next_piece(reader, &asked);
            if (piece.length == 0) {
                break;
            }
            if (reader->ahead || !bring_huge(piece)) {
                ask(piece.fd, piece.offset, piece.length);
            }
            under_way++;
        }
        const corral_file_range piece = next_piece(reader, &awaited);
        if (piece.length == 0) {
            return;
        }
        const int error = await(piece);
        under_way--;
        if (!tell(reader, error ? 0 : piece.length, error)) {
            return;
        }
    }
}

static void * run(void * argument) {
    corral_reader * reader = argument;
    pthread_mutex_lock(&reader->mutex);
    while (!reader->stopping) {
        if (!reader->again) {
            pthread_cond_wait(&reader->wake, &reader->mutex);
            continue;
        }
        reader->again = false;
        reader->progress.reading = 1;
        reader->progress.read = 0;
        pthread_mutex_unlock(&reader->mutex);
        pass(reader);
        pthread_mutex_lock(&reader->mutex);
        reader->progress.reading = 0;
        reader->progress.passes++;
    }
    pthread_mutex_unlock(&reader->mutex);
    return NULL;
}

corral_reader * corral_reader_start(
        const corral_file_range * ranges, uint64_t n, uint64_t piece, uint64_t ahead) {
    corral_reader * reader = calloc(1, sizeof(*reader) + n * sizeof(*ranges));
    if (!reader) {
        return NULL;
    }
    reader->piece = piece;
    reader->ahead = ahead;
    reader->n     = n;
    memcpy(reader->ranges, ranges, n * sizeof(*ranges));
    reader->again = true;
    pthread_mutex_init(&reader->mutex, NULL);
    pthread_cond_init(&reader->wake, NULL);
    const int error = pthread_create(&reader->thread, NULL, run, reader);
    if (error) {
        free(reader);
        errno = error;
        return NULL;
    }
    return reader;
}

static void wake(corral_reader * reader, bool * flag) {
    pthread_mutex_lock(&reader->mutex);
    *flag = true;
    pthread_cond_signal(&reader->wake);
    pthread_mutex_unlock(&reader->mutex);
}

void corral_reader_again(corral_reader * reader) {
    wake(reader, &reader->again);
}

void corral_reader_look(corral_reader * reader, corral_reader_progress * out) {
    pthread_mutex_lock(&reader->mutex);
    *out = reader->progress;
    pthread_mutex_unlock(&reader->mutex);
}

void corral_reader_stop(corral_reader * reader) {
    wake(reader, &reader->stopping);
    pthread_join(reader->thread, NULL);
    pthread_cond_destroy(&reader->wake);
    pthread_mutex_destroy(&reader->mutex);
    free(reader);
}
