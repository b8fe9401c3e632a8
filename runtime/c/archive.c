/* The bytes around the members of an engine file: a zip archive whose every header follows from its list of members.
 *
 * Nothing in it is free, so each header is made here and compared with what the file holds (runtime/archive.py writes them).
 */
#include "internal.h"

#include <string.h>

#define LOCAL_SIZE 30
#define LIMIT UINT64_C(0xffffffff)
#define DATE 0x0021            /* 1980-01-01, the first day a zip can name */
#define MODE (0100644u << 16)  /* a file that all may read */
#define PADDING_FIELD 0xd935   /* the extra field that archives use to say "alignment, then padding" */

/* Bytes that are put together, at most one header: names have at most 255 bytes, and padding less than a page and a half. */
struct bytes {
    uint8_t data[2 * OURCC_PAGE];
    size_t size;
};

static void put(struct bytes *bytes, uint64_t value, int count) {
    for (; count; --count, value >>= 8) bytes->data[bytes->size++] = (uint8_t)value;
}

static void put_name(struct bytes *bytes, const char *name) {
    size_t length = strlen(name);
    memcpy(bytes->data + bytes->size, name, length);
    bytes->size += length;
}

void ourcc_place(struct member *members, size_t count) {
    uint64_t header = 0;
    for (size_t n = 0; n < count; ++n) {
        uint64_t least = header + LOCAL_SIZE + strlen(members[n].name) + (members[n].size >= LIMIT ? 20 : 0) + 6;
        members[n].header = header;
        members[n].data = (least + OURCC_PAGE - 1) / OURCC_PAGE * OURCC_PAGE;
        header = members[n].data + members[n].size;
    }
}

static void put_local(struct bytes *bytes, const struct member *member) {
    bool is_big = member->size >= LIMIT;
    size_t name = strlen(member->name), extra = (size_t)(member->data - member->header) - LOCAL_SIZE - name;
    uint64_t size = is_big ? LIMIT : member->size;
    put(bytes, 0x04034b50, 4);
    put(bytes, is_big ? 45 : 10, 2);
    put(bytes, 0, 2);
    put(bytes, 0, 2);
    put(bytes, 0, 2);
    put(bytes, DATE, 2);
    put(bytes, member->crc, 4);
    put(bytes, size, 4);
    put(bytes, size, 4);
    put(bytes, name, 2);
    put(bytes, extra, 2);
    put_name(bytes, member->name);
    if (is_big) {
        put(bytes, 1, 2);
        put(bytes, 16, 2);
        put(bytes, member->size, 8);
        put(bytes, member->size, 8);
        extra -= 20;
    }
    put(bytes, PADDING_FIELD, 2);
    put(bytes, extra - 4, 2);
    put(bytes, OURCC_PAGE, 2);
    for (size_t n = 6; n < extra; ++n) put(bytes, 0, 1);
}

static void put_central(struct bytes *bytes, const struct member *member) {
    bool is_big = member->size >= LIMIT, is_far = member->header >= LIMIT;
    int words = (is_big ? 2 : 0) + (is_far ? 1 : 0), version = words ? 45 : 10;
    put(bytes, 0x02014b50, 4);
    put(bytes, (uint64_t)version | 3 << 8, 2);
    put(bytes, (uint64_t)version, 2);
    put(bytes, 0, 2);
    put(bytes, 0, 2);
    put(bytes, 0, 2);
    put(bytes, DATE, 2);
    put(bytes, member->crc, 4);
    put(bytes, is_big ? LIMIT : member->size, 4);
    put(bytes, is_big ? LIMIT : member->size, 4);
    put(bytes, strlen(member->name), 2);
    put(bytes, words ? (uint64_t)(4 + 8 * words) : 0, 2);
    put(bytes, 0, 2);
    put(bytes, 0, 2);
    put(bytes, 0, 2);
    put(bytes, MODE, 4);
    put(bytes, is_far ? LIMIT : member->header, 4);
    put_name(bytes, member->name);
    if (!words) return;
    put(bytes, 1, 2);
    put(bytes, (uint64_t)(8 * words), 2);
    if (is_big) put(bytes, member->size, 8);
    if (is_big) put(bytes, member->size, 8);
    if (is_far) put(bytes, member->header, 8);
}

static void put_end(struct bytes *bytes, uint64_t count, uint64_t size, uint64_t start, const char *comment) {
    bool is_big = start >= LIMIT || size >= LIMIT || count >= 0xffff;
    if (is_big) {
        put(bytes, 0x06064b50, 4);
        put(bytes, 44, 8);
        put(bytes, 45 | 3 << 8, 2);
        put(bytes, 45, 2);
        put(bytes, 0, 4);
        put(bytes, 0, 4);
        put(bytes, count, 8);
        put(bytes, count, 8);
        put(bytes, size, 8);
        put(bytes, start, 8);
        put(bytes, 0x07064b50, 4);
        put(bytes, 0, 4);
        put(bytes, start + size, 8);
        put(bytes, 1, 4);
    }
    put(bytes, 0x06054b50, 4);
    put(bytes, 0, 2);
    put(bytes, 0, 2);
    put(bytes, is_big ? 0xffff : count, 2);
    put(bytes, is_big ? 0xffff : count, 2);
    put(bytes, is_big ? LIMIT : size, 4);
    put(bytes, is_big ? LIMIT : start, 4);
    put(bytes, strlen(comment), 2);
    put_name(bytes, comment);
}

/* Whether the file holds these bytes at a place. */
static bool is_there(int handle, uint64_t first, const struct bytes *expected) {
    uint8_t found[sizeof expected->data];
    return ourcc_read_at(handle, first, found, expected->size) && memcmp(found, expected->data, expected->size) == 0;
}

void ourcc_check_header(const struct document *document, int handle, const struct member *member) {
    struct bytes expected = {.size = 0};
    put_local(&expected, member);
    if (!is_there(handle, member->header, &expected)) ourcc_damaged(document, "header of %s is damaged", member->name);
}

void ourcc_check_archive(const struct document *document, int handle, uint64_t size, const struct member *members, size_t count,
                         const char *comment) {
    const struct member *last = &members[count - 1];
    uint64_t start = last->data + last->size, next = start;
    struct bytes end = {.size = 0};
    for (size_t n = 0; n < count; ++n) {
        struct bytes entry = {.size = 0};
        put_central(&entry, &members[n]);
        next += entry.size;
    }
    put_end(&end, count, next - start, start, comment);
    if (next + end.size != size)
        ourcc_damaged(document, "engine has %llu bytes, expected %llu", (unsigned long long)size, (unsigned long long)(next + end.size));
    if (!is_there(handle, next, &end)) ourcc_damaged(document, "directory of the archive does not match the manifest");
    next = start;
    for (size_t n = 0; n < count; ++n) {
        struct bytes entry = {.size = 0};
        put_central(&entry, &members[n]);
        if (!is_there(handle, next, &entry)) ourcc_damaged(document, "directory of the archive does not match the manifest");
        next += entry.size;
        ourcc_check_header(document, handle, &members[n]);
    }
}
