/* The host program of a GPU's plan: an interpreter of the words that runtime/launches.py writes for the sizes of a call.

   It calls the driver through a table of addresses, so it is the same for all plans, and needs no header of CUDA's. */
#include "ourcc.h"
#include <stddef.h>

enum { LAUNCH = 1, COPY = 2, ZERO = 3, MOST_PARAMETERS = 1024 };

struct driver {
    int32_t (*launch)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);
    int32_t (*copy)(void *, void *, size_t, void *);
    int32_t (*zero)(void *, unsigned char, size_t, void *);
};

/* A choice: its length, grid, threads, shared bytes, whether it has scratch, kernel, then three counts and lists: buffers that
   must be aligned, buffers that are arguments, sizes. */
static int32_t launch(const int64_t *w, void *const *cells, void *scratch, void *stream, const struct driver *driver) {
    int64_t choices = *w++;
    for (int64_t n = 0; n < choices; n++, w += w[0]) {
        const int64_t *aligned = w + 8;
        const int64_t *arguments = aligned + 1 + aligned[0];
        const int64_t *sizes = arguments + 1 + arguments[0];
        int fits = 1;
        for (int64_t k = 1; k <= aligned[0]; k++) fits &= ((uintptr_t)cells[aligned[k]] & 15) == 0;
        if (!fits) continue;
        if (w[1] == 0 || w[2] == 0 || w[3] == 0) return 0;
        void *parameters[MOST_PARAMETERS + 2];
        int32_t numbers[MOST_PARAMETERS];
        void *hidden[2] = {w[6] ? scratch : 0, 0};
        int64_t count = 0;
        for (int64_t k = 1; k <= arguments[0]; k++) parameters[count++] = (void *)(cells + arguments[k]);
        for (int64_t k = 1; k <= sizes[0]; k++) {
            numbers[k - 1] = (int32_t)sizes[k];
            parameters[count++] = numbers + (k - 1);
        }
        parameters[count++] = hidden;
        parameters[count++] = hidden + 1;
        return driver->launch((void *)(intptr_t)w[7], (unsigned)w[1], (unsigned)w[2], (unsigned)w[3], (unsigned)w[4], 1, 1,
                              (unsigned)w[5], stream, parameters, 0);
    }
    return -1;
}

/* Run the steps that `words` hold; what the driver gave that failed, and which step that was. */
OURCC_EXPORT int32_t ourcc_launches_1(const int64_t *words, int64_t count, void *const *cells, void *scratch, void *stream,
                                      const void *table, int64_t *failed);
int32_t ourcc_launches_1(const int64_t *words, int64_t count, void *const *cells, void *scratch, void *stream,
                         const void *table, int64_t *failed) {
    const struct driver *driver = table;
    for (const int64_t *w = words; w < words + count; w += w[0]) {
        int32_t status = 0;
        if (w[1] == LAUNCH) status = launch(w + 3, cells, scratch, stream, driver);
        else if (w[1] == COPY) status = driver->copy(cells[w[3]], cells[w[4]], (size_t)w[5], stream);
        else if (w[1] == ZERO) status = driver->zero(cells[w[3]], 0, (size_t)w[4], stream);
        else status = -1;
        if (status != 0) {
            *failed = w[2];
            return status;
        }
    }
    return 0;
}
