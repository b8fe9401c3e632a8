/* Element types by name and width, types of tensors, and how they are shown. */
#include "internal.h"

#include <string.h>

static const struct {
    const char *name;
    unsigned bits;
} dtypes[] = {
    [OURCC_F64] = {"f64", 64},           [OURCC_F32] = {"f32", 32},
    [OURCC_F16] = {"f16", 16},           [OURCC_BF16] = {"bf16", 16},
    [OURCC_F8E4M3] = {"f8e4m3", 8},      [OURCC_F8E5M2] = {"f8e5m2", 8},
    [OURCC_F8E4M3FNUZ] = {"f8e4m3fnuz", 8}, [OURCC_F8E5M2FNUZ] = {"f8e5m2fnuz", 8},
    [OURCC_F8E8M0] = {"f8e8m0", 8},      [OURCC_F4E2M1] = {"f4e2m1", 4},
    [OURCC_I64] = {"i64", 64},           [OURCC_I32] = {"i32", 32},
    [OURCC_I16] = {"i16", 16},           [OURCC_I8] = {"i8", 8},
    [OURCC_I4] = {"i4", 4},              [OURCC_I2] = {"i2", 2},
    [OURCC_U64] = {"u64", 64},           [OURCC_U32] = {"u32", 32},
    [OURCC_U16] = {"u16", 16},           [OURCC_U8] = {"u8", 8},
    [OURCC_U4] = {"u4", 4},              [OURCC_U2] = {"u2", 2},
    [OURCC_BOOL] = {"bool", 8},          [OURCC_C64] = {"c64", 64},
    [OURCC_C128] = {"c128", 128},
};

#define COUNT (sizeof dtypes / sizeof *dtypes)

bool ourcc_is_dtype(ourcc_dtype dtype) { return (size_t)dtype < COUNT; }

const char *ourcc_dtype_name(ourcc_dtype dtype) { return ourcc_is_dtype(dtype) ? dtypes[dtype].name : "no dtype of ourcc"; }

unsigned ourcc_bits(ourcc_dtype dtype) { return dtypes[dtype].bits; }

bool ourcc_find_dtype(const char *name, ourcc_dtype *dtype) {
    for (size_t n = 0; n < COUNT; ++n)
        if (strcmp(dtypes[n].name, name) == 0) {
            *dtype = (ourcc_dtype)n;
            return true;
        }
    return false;
}

size_t ourcc_tensor_bytes(ourcc_dtype dtype, size_t rank, const int64_t *shape) {
    uint64_t elements = 1;
    bool is_empty = false;
    if (!ourcc_is_dtype(dtype)) return SIZE_MAX;
    for (size_t n = 0; n < rank; ++n) {
        if (shape[n] < 0) return SIZE_MAX;
        is_empty |= shape[n] == 0;
        /* An empty tensor has no bytes, and its other sizes are multiplied all the same. */
        if (shape[n] && __builtin_mul_overflow(elements, (uint64_t)shape[n], &elements)) return SIZE_MAX;
        if (elements > (uint64_t)OURCC_LARGEST * 8 / dtypes[dtype].bits) return SIZE_MAX;
    }
    return is_empty ? 0 : (size_t)((elements * dtypes[dtype].bits + 7) / 8);
}

struct type ourcc_read_type(const struct document *document, const struct names *symbols, const char *dtype, const struct json *shape) {
    struct type type = {OURCC_F32, shape->count, ourcc_take(document->task, document->memory, shape->count + 1, sizeof *type.shape)};
    if (strcmp(dtype, "string") == 0)
        ourcc_fail(document->task, OURCC_UNSUPPORTED, "%.200s: the engine holds texts (%s), which need Python", document->path,
                   document->member);
    if (!ourcc_find_dtype(dtype, &type.dtype)) ourcc_damaged(document, "'%.40s' is no element type", dtype);
    const struct dim **size = type.shape;
    for (const struct json *part = shape->first; part; part = part->next) *size++ = ourcc_read_dim(document, symbols, part);
    return type;
}

size_t ourcc_static_bytes(const struct type *type) {
    uint64_t elements = 1;
    for (size_t n = 0; n < type->rank; ++n) {
        int64_t size = type->shape[n]->number;
        if (type->shape[n]->kind != DIM_NUMBER || size < 0) return SIZE_MAX;
        if (__builtin_mul_overflow(elements, (uint64_t)size, &elements)) return SIZE_MAX;
    }
    if (elements > (uint64_t)OURCC_LARGEST * 8 / ourcc_bits(type->dtype)) return SIZE_MAX;
    return (size_t)((elements * ourcc_bits(type->dtype) + 7) / 8);
}

void ourcc_add_shape(struct line *line, size_t rank, const int64_t *shape) {
    for (size_t n = 0; n < rank; ++n) ourcc_add(line, "%s%lld", n ? ", " : "", (long long)shape[n]);
}

void ourcc_add_type(struct line *line, const struct type *type) {
    ourcc_add(line, "%s[", ourcc_dtype_name(type->dtype));
    for (size_t n = 0; n < type->rank; ++n) ourcc_add(line, "%s%s", n ? ", " : "", type->shape[n]->text);
    ourcc_add(line, "]");
}

ourcc_port ourcc_port_of(const struct document *document, const char *name, const struct type *type) {
    int64_t *shape = ourcc_take(document->task, document->memory, type->rank + 1, sizeof *shape);
    const char **sizes = ourcc_take(document->task, document->memory, type->rank + 1, sizeof *sizes);
    for (size_t n = 0; n < type->rank; ++n) {
        shape[n] = type->shape[n]->kind == DIM_NUMBER ? type->shape[n]->number : -1;
        sizes[n] = type->shape[n]->text;
    }
    return (ourcc_port){name, type->dtype, type->rank, shape, sizes};
}
