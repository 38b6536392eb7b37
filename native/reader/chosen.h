// Reads the weights of the experts that tokens have been given to, whole and at once.
//
// Experts are mapped without read-ahead, so that those which nobody wants stay on the disk. Those
// which are wanted are wanted whole: a fault for each of their pages would be as many waits.
#pragma once

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

// Begins to read what the page cache lacks of these weights, which a file's mapping holds, and does
// not wait for it. Where mincore tells nothing, of a file that is neither the caller's own nor
// writable, pages come as they are touched.
void corral_read_chosen(const void * weights, size_t size);

#ifdef __cplusplus
}
#endif
