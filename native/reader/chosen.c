#define _DEFAULT_SOURCE // madvise, mincore

#include "chosen.h"

#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#ifdef __APPLE__
typedef char residency;
#else
typedef unsigned char residency;
#endif

// One MADV_WILLNEED reads no more than the device's read-ahead, which is seldom less.
#define PIECE (128 << 10)

void corral_read_chosen(const void * weights, size_t size) {
    const uintptr_t page = (uintptr_t) sysconf(_SC_PAGESIZE);
    const uintptr_t end  = (uintptr_t) weights + size;
    residency cached[PIECE / 4096];
    for (uintptr_t at = (uintptr_t) weights / page * page; at < end; at += PIECE) {
        const size_t length = end - at < PIECE ? end - at : PIECE;
        const size_t pages  = (length + page - 1) / page;
        // Looking is quick where pages are mapped, and asking is not, not even for what is there.
        if (mincore((void *) at, length, cached) == 0 && memchr(cached, 0, pages)) {
            // a hint: where it is refused, pages come as they are touched
            (void) madvise((void *) at, length, MADV_WILLNEED);
        }
    }
}
