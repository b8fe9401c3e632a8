/* The op `top_k` in C: the first elements of each line in order, a line for each point. */
#include "lines.h"

static int32_t top_k(void *const *operands, const int64_t *numbers, int64_t first, int64_t last) {
    return best(operands, numbers, first, last);
}

const ourcc_kernel top_k_descriptor = {top_k, 0, 0};
