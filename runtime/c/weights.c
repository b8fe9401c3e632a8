/* Weights: the constants of a safetensors member, views of checked bytes, as runtime/weights.py writes them. */
#include "internal.h"

#include <stdio.h>
#include <string.h>

#define PADDING "~padding."
#define LARGEST_SIZE (INT64_C(1) << 48)

/* The dtypes of safetensors by their names there. */
static const struct {
    const char *name;
    ourcc_dtype dtype;
} dtypes[] = {
    {"F64", OURCC_F64},       {"F32", OURCC_F32},       {"F16", OURCC_F16},       {"BF16", OURCC_BF16}, {"F8_E4M3", OURCC_F8E4M3},
    {"F8_E5M2", OURCC_F8E5M2}, {"F8_E8M0", OURCC_F8E8M0}, {"I64", OURCC_I64},      {"I32", OURCC_I32},   {"I16", OURCC_I16},
    {"I8", OURCC_I8},         {"U64", OURCC_U64},       {"U32", OURCC_U32},       {"U16", OURCC_U16},   {"U8", OURCC_U8},
    {"BOOL", OURCC_BOOL},     {"C64", OURCC_C64},
};

static ourcc_dtype find_dtype(const struct document *document, const char *name) {
    for (size_t n = 0; n < sizeof dtypes / sizeof *dtypes; ++n)
        if (strcmp(dtypes[n].name, name) == 0) return dtypes[n].dtype;
    ourcc_damaged(document, "'%.40s' is no element type of safetensors", name);
}

static struct type read_type(const struct document *document, ourcc_dtype dtype, const struct json *shape) {
    static const struct names none;
    struct type type = ourcc_read_type(document, &none, ourcc_dtype_name(dtype), shape);
    for (size_t n = 0; n < type.rank; ++n)
        if (type.shape[n]->kind != DIM_NUMBER || type.shape[n]->number < 0 || type.shape[n]->number >= LARGEST_SIZE)
            ourcc_damaged(document, "a shape holds what is no size");
    return type;
}

/* A type as text, `u4[128, 32]`, of what safetensors has no name for. Texts are left out: `is_text` says so. */
static struct type read_written_type(const struct document *document, const char *text, bool *is_text) {
    char list[600], name[16];
    ourcc_dtype dtype;
    const char *bracket = strchr(text, '[');
    size_t length = strlen(text);
    if (!bracket || text[length - 1] != ']' || (size_t)(bracket - text) >= sizeof name || length >= sizeof list)
        ourcc_damaged(document, "got the type '%.80s', expected dtype[sizes]", text);
    snprintf(name, sizeof name, "%.*s", (int)(bracket - text), text);
    *is_text = strcmp(name, "string") == 0;
    if (*is_text) return (struct type){.dtype = OURCC_U8};
    if (!ourcc_find_dtype(name, &dtype)) ourcc_damaged(document, "'%.40s' is no element type", name);
    /* Its sizes between brackets are a list in JSON as well. */
    return read_type(document, dtype, ourcc_expect(document, ourcc_read_json(document, bracket, strlen(bracket)), JSON_LIST, "sizes"));
}

/* Where a tensor lies behind the header: where the one before it ends. */
static void read_place(const struct document *document, const struct json *entry, uint64_t begin, uint64_t size, uint64_t place[2]) {
    const struct json *offsets = ourcc_need(document, entry, "data_offsets", JSON_LIST), *first = offsets->first;
    if (offsets->count != 2 || first->kind != JSON_INTEGER || first->next->kind != JSON_INTEGER || first->integer < 0 ||
        (uint64_t)first->integer != begin || first->integer > first->next->integer || (uint64_t)first->next->integer > size)
        ourcc_damaged(document, "tensor '%.80s' does not begin at %llu or lies outside of %llu bytes", entry->key,
                      (unsigned long long)begin, (unsigned long long)size);
    place[0] = (uint64_t)first->integer;
    place[1] = (uint64_t)first->next->integer;
}

/* Kernels read constants at aligned addresses: what does not lie at one is copied. */
static const char *aligned(const struct document *document, const char *data, size_t size) {
    if ((uintptr_t)data % OURCC_ALIGNMENT == 0) return data;
    char *copy = ourcc_take(document->task, document->memory, size + OURCC_ALIGNMENT, 1);
    copy += -(uintptr_t)copy & (OURCC_ALIGNMENT - 1);
    return size ? memcpy(copy, data, size) : copy;
}

static const struct json *written_types(const struct document *document, const struct json *header) {
    const struct json *metadata = ourcc_part_of(document, header, "__metadata__", JSON_OBJECT);
    const struct json *text = metadata ? ourcc_part_of(document, metadata, "ourcc.types", JSON_TEXT) : NULL;
    return text ? ourcc_expect(document, ourcc_read_json(document, text->text, strlen(text->text)), JSON_OBJECT, "types") : NULL;
}

/* A tensor that begins at this place of the data; where it ends. */
static uint64_t read_tensor(const struct document *document, const struct json *entry, const struct json *types, const char *data,
                            uint64_t begin, uint64_t size, struct weights *weights) {
    uint64_t place[2];
    bool is_text = false;
    read_place(document, entry, begin, size, place);
    if (strncmp(entry->key, PADDING, strlen(PADDING)) == 0) return place[1];
    ourcc_dtype dtype = find_dtype(document, ourcc_need(document, entry, "dtype", JSON_TEXT)->text);
    const struct json *written = types ? ourcc_part_of(document, types, entry->key, JSON_TEXT) : NULL;
    struct type type = written ? read_written_type(document, written->text, &is_text)
                               : read_type(document, dtype, ourcc_need(document, entry, "shape", JSON_LIST));
    if (is_text) return place[1]; /* A plan that reads it is refused. */
    size_t bytes = (size_t)(place[1] - place[0]), expected = ourcc_static_bytes(&type);
    if (expected > bytes || (!written && expected != bytes))
        ourcc_damaged(document, "tensor '%.80s' has %zu bytes, expected %zu", entry->key, bytes, expected);
    weights->constants[weights->count] = (struct constant){entry->key, type, aligned(document, data + place[0], bytes), bytes};
    if (!ourcc_name(document->task, document->memory, &weights->names, entry->key, weights->count++))
        ourcc_damaged(document, "tensor '%.80s' stands there twice", entry->key);
    return place[1];
}

void ourcc_read_weights(struct task *task, struct file *file, const char *name, struct weights *weights) {
    char path[600];
    size_t number;
    snprintf(path, sizeof path, "weights/%.500s.safetensors", name);
    if (!ourcc_find(&file->names, path, &number)) return;
    const struct member *member = &file->members[number];
    struct document document = {task, &file->memory, file->path, member->name};
    const char *head = file->heads[number], *data = file->copies[number].data ? file->copies[number].data : file->map + member->data;
    uint64_t length = 0;
    for (int n = 7; n >= 0; --n) length = length << 8 | (unsigned char)head[n];
    if (length != member->head - 8) ourcc_damaged(&document, "its header has another length than it says");
    const struct json *header = ourcc_expect(&document, ourcc_read_json(&document, head + 8, (size_t)length), JSON_OBJECT, "header");
    const struct json *types = written_types(&document, header);
    weights->constants = ourcc_take(task, &file->memory, header->count + 1, sizeof *weights->constants);
    uint64_t end = 0, size = member->size - member->head;
    for (const struct json *entry = header->first; entry; entry = entry->next)
        if (strcmp(entry->key, "__metadata__") != 0) end = read_tensor(&document, entry, types, data + member->head, end, size, weights);
    if (end != size) ourcc_damaged(&document, "%llu bytes follow the last tensor", (unsigned long long)(size - end));
}

/* --- names --- */

static const struct json *listed(const struct document *document, const struct json *object, const char *key) {
    const struct json *list = object ? ourcc_part_of(document, object, key, JSON_LIST) : NULL;
    return list ? list->first : NULL;
}

const char *ourcc_constant_key(const struct document *document, const struct json *storage) {
    char text[4000] = "";
    size_t length = 0;
    const char *value = ourcc_need(document, storage, "value", JSON_TEXT)->text;
    const struct json *layout = ourcc_field(storage, "layout"), *making = ourcc_part_of(document, storage, "making", JSON_OBJECT);
    if (!layout || layout->kind == JSON_NULL) return value;
#define ADD(...) (length += length < sizeof text ? (size_t)snprintf(text + length, sizeof text - length, __VA_ARGS__) : 0)
#define ADD_EACH(object, key)                                                                                                      \
    for (const struct json *first = listed(document, object, key), *each = first; each; each = each->next)                          \
    ADD("%s%lld", each == first ? "" : ", ", (long long)ourcc_expect(document, each, JSON_INTEGER, key)->integer)
    ADD("%s", value);
    for (const struct json *factor = listed(document, layout, "factors"); factor; factor = factor->next) {
        const struct json *divisor = ourcc_part_of(document, factor, "divisor", JSON_INTEGER);
        const struct json *modulus = ourcc_field(factor, "modulus");
        ADD(" %s", ourcc_need(document, factor, "axis", JSON_TEXT)->text);
        if (divisor && divisor->integer != 1) ADD("/%lld", (long long)divisor->integer);
        if (modulus && modulus->kind == JSON_INTEGER) ADD("%%%lld", (long long)modulus->integer);
    }
    ADD(" of [");
    ADD_EACH(storage, "shape");
    ADD("]");
    if (making) {
        const char *kind = ourcc_need(document, making, "kind", JSON_TEXT)->text;
        if (strcmp(kind, "filtering") == 0)
            ADD(" filtered %lld", (long long)ourcc_need(document, making, "places", JSON_INTEGER)->integer);
        else if (strcmp(kind, "pairing") == 0)
            ADD(" paired %lld by %lld", (long long)ourcc_need(document, making, "terms", JSON_INTEGER)->integer,
                (long long)ourcc_need(document, making, "columns", JSON_INTEGER)->integer);
        else
            ourcc_damaged(document, "a constant is made by %.100s, expected filtering or pairing", kind);
        ADD(" along (");
        ADD_EACH(making, "along");
        ADD(")");
    }
#undef ADD_EACH
#undef ADD
    if (length >= sizeof text) ourcc_damaged(document, "the name of a constant is longer than %zu bytes", sizeof text);
    return ourcc_take_text(document->task, document->memory, text, length);
}
