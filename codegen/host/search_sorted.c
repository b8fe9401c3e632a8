/* The op `search_sorted` in C, an element for each point. */
#define KEY uint64_t
#define SIGNED_KEY int64_t
#define PLACE uint64_t
#define OF(name) name##_64
#include "order.h"

enum { BOUNDARIES, X, INDICES };
enum { COUNT, RIGHT, BITS, KIND, MOST };

static int32_t search_sorted(void *const *operands, const int64_t *numbers, int64_t first, int64_t last) {
    struct format format = {numbers[BITS], (enum kind)numbers[KIND], (uint64_t)numbers[MOST], false};
    struct line boundaries = {operands[BOUNDARIES], 0, 1, numbers[COUNT], &format}, x = {operands[X], 0, 1, last, &format};
    for (int64_t n = first; n < last; ++n) {
        int64_t low = 0, high = boundaries.size;
        uint64_t key, found;
        read_64(&x, n, 1, &key);
        while (low < high) {
            int64_t middle = low + (high - low) / 2;
            read_64(&boundaries, middle, 1, &found);
            if (found < key || (numbers[RIGHT] && found == key))
                low = middle + 1;
            else
                high = middle;
        }
        ((int64_t *)operands[INDICES])[n] = low;
    }
    return 0;
}

const ourcc_kernel search_sorted_descriptor = {search_sorted, 0, 0};
