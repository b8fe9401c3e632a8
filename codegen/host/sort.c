/* The op `sort` in C: all elements of each line in order, a line for each point. */
#include "lines.h"

static int32_t sort(void *const *operands, const int64_t *numbers, int64_t first, int64_t last) {
    return best(operands, numbers, first, last);
}

const ourcc_kernel sort_descriptor = {sort, 0, 0};
