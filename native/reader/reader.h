// Reads parts of files into the page cache, in a given order, from a thread of its own.
//
// The thread touches no memory of the model: it asks the kernel for the next pieces and waits until
// the oldest of them has come. Pages that the computing needs are then
// there or on their way. What cannot be read ends a pass, and nothing else.
#pragma once

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct corral_reader corral_reader;

typedef struct {
    uint64_t offset; // bytes from the start of the file
    uint64_t length;
    int32_t  fd;     // to stay open until corral_reader_stop
} corral_file_range;

typedef struct {
    uint64_t passes;   // that have ended
    uint64_t read;     // bytes of the last pass that are behind it, cached before or not
    int32_t  error;    // errno that ended the last pass early, ENODATA at a file's end; 0 if none
    int32_t  reading;  // a pass is under way
} corral_reader_progress;

// Begins a pass over the ranges, which are copied. NULL, with errno set, if there is no thread or
// memory to be had. piece: bytes asked for at once; in the file, pieces end at its multiples.
// ahead: pieces asked for and not yet awaited. 0 brings piece after piece in huge pages instead, if
// pieces are as large as those: computing is faster with them. The kernel then reads up to two
// more behind a piece, and so perhaps behind a range.
corral_reader * corral_reader_start(
    const corral_file_range * ranges, uint64_t n, uint64_t piece, uint64_t ahead);

// Another pass, after the one under way if there is one. Never blocks for long.
void corral_reader_again(corral_reader * reader);

void corral_reader_look(corral_reader * reader, corral_reader_progress * out);

// Waits for the pieces under way, then ends the thread and frees the reader.
void corral_reader_stop(corral_reader * reader);

#ifdef __cplusplus
}
#endif
