/* The best of each line along an axis, as the ops `top_k` and `sort` tell it; included once. */
#define KEY uint32_t
#define SIGNED_KEY int32_t
#define PLACE uint32_t
#define OF(name) name##_32
#include "order.h"
#undef KEY
#undef SIGNED_KEY
#undef PLACE
#undef OF
#define KEY uint64_t
#define SIGNED_KEY int64_t
#define PLACE uint64_t
#define OF(name) name##_64
#include "order.h"

enum { X, VALUES, INDICES };
enum { OUTER, SIZE, INNER, KEPT, DESCENDING, BITS, KIND, MOST };

/* The `numbers` are those that `codegen/host/routines.py` says. */
static int32_t best(void *const *operands, const int64_t *numbers, int64_t first, int64_t last) {
    int64_t size = numbers[SIZE], inner = numbers[INNER], kept = numbers[KEPT];
    struct format format = {numbers[BITS], (enum kind)numbers[KIND], (uint64_t)numbers[MOST], numbers[DESCENDING] != 0};
    const uint8_t *x = operands[X];
    uint8_t *values = operands[VALUES];
    if (kept < 0 || kept > size) return EINVAL;
    if (format.bits < 8) {
        /* Lines share bytes: one point is all of them. */
        last = numbers[OUTER] * inner;
        memset(values, 0, (size_t)(last * kept * format.bits + 7) / 8);
    }
    if (!kept) return 0;
    bool is_wide = format.bits > 32 || size > UINT32_MAX;
    return (is_wide ? lines_64 : lines_32)(&format, x, values, operands[INDICES], size, inner, kept, first, last);
}
