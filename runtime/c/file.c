/* The engine file as it is read: everything is checked before it is used, as runtime/reader.py does it. */
#include "internal.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define SCHEMA 11
#define MOST_MANIFEST ((uint64_t)64 << 20)
#define MOST_MEMBERS 1000000
#define MOST_SIZE (INT64_C(1) << 60)
#define END_SIZE 22
#define COMMENT 71         /* "sha256:" and 64 digits */
#define SIGNED_COMMENT 273 /* and " ed25519:", 64 digits, ":", 128 digits */
#define SMALL ((uint64_t)1 << 20) /* weights no larger are copied, so that nothing that happens to the file can reach them */

/* --- the end of the file --- */

static size_t digits_at(const char *text, size_t count) {
    return strspn(text, "0123456789abcdef") >= count ? count : 0;
}

static bool is_comment(const char *text, size_t length) {
    if (strncmp(text, "sha256:", 7) != 0 || !digits_at(text + 7, 64)) return false;
    if (length == COMMENT) return true;
    const char *rest = text + COMMENT;
    return strncmp(rest, " ed25519:", 9) == 0 && digits_at(rest + 9, 64) && rest[73] == ':' && digits_at(rest + 74, 128);
}

/* The comment at the end of the archive: the digest of the manifest, and perhaps a signature. */
static const char *find_comment(const struct document *document, const struct file *file) {
    static const size_t lengths[] = {COMMENT, SIGNED_COMMENT};
    for (size_t n = 0; n < 2; ++n) {
        size_t length = lengths[n];
        if (file->size < OURCC_PAGE + length + END_SIZE) continue;
        unsigned char *end = ourcc_take(document->task, document->memory, END_SIZE + length + 1, 1);
        if (!ourcc_read_at(file->handle, file->size - length - END_SIZE, end, END_SIZE + length)) break;
        if (memcmp(end, "PK\5\6", 4) == 0 && (size_t)(end[20] | end[21] << 8) == length && is_comment((char *)end + END_SIZE, length))
            return (char *)end + END_SIZE;
    }
    ourcc_damaged(document, "not an engine, or cut off: its end holds no digest of a manifest");
}

/* --- the manifest --- */

static const struct json *read_manifest(const struct document *document, struct file *file, const char *comment) {
    unsigned char start[OURCC_PAGE];
    char found[65];
    if (!ourcc_read_at(file->handle, 0, start, sizeof start)) ourcc_damaged(document, "engine ends early");
    uint64_t size = start[18] | start[19] << 8 | start[20] << 16 | (uint64_t)start[21] << 24;
    if (size > MOST_MANIFEST || size > file->size - OURCC_PAGE)
        ourcc_damaged(document, "manifest of %llu bytes does not fit", (unsigned long long)size);
    char *text = ourcc_take(document->task, document->memory, (size_t)size + 1, 1);
    if (!ourcc_read_at(file->handle, OURCC_PAGE, text, (size_t)size)) ourcc_damaged(document, "engine ends early");
    struct digest digest = ourcc_sha256(text, (size_t)size);
    ourcc_hexadecimal(&digest, found);
    if (strncmp(found, comment + 7, 64) != 0) ourcc_damaged(document, "manifest does not match its digest");
    struct member manifest = {.name = "manifest.json", .size = size, .crc = ourcc_crc32(0, text, (size_t)size)};
    ourcc_place(&manifest, 1);
    ourcc_check_header(document, file->handle, &manifest);
    const struct json *json = ourcc_read_json(document, text, (size_t)size);
    const struct json *format = ourcc_part_of(document, json, "format", JSON_TEXT);
    if (!format || strcmp(format->text, "ourcc engine") != 0) ourcc_damaged(document, "not an engine: its manifest names another format");
    int64_t schema = ourcc_need(document, json, "schema", JSON_INTEGER)->integer;
    if (schema != SCHEMA)
        ourcc_fail(document->task, OURCC_UNSUPPORTED, "%.200s: engine has schema %lld, expected %d: use the version of ourcc that built it",
                   file->path, (long long)schema, SCHEMA);
    file->members = ourcc_take(document->task, document->memory, 1, sizeof *file->members);
    file->members[0] = manifest;
    return json;
}

static bool is_name_sign(char sign) {
    return (sign >= 'a' && sign <= 'z') || (sign >= 'A' && sign <= 'Z') || (sign >= '0' && sign <= '9') || (sign && strchr("_+@~-.", sign));
}

/* At most eight words between slashes, none of which is longer than 200 signs or begins with a dot. */
static bool is_member_name(const char *name) {
    size_t words = 1, length = 0;
    for (const char *next = name; *next; ++next) {
        if (*next == '/') {
            if (!length || ++words > 8) return false;
            length = 0;
        } else if (!is_name_sign(*next) || (!length && *next == '.') || ++length > 200)
            return false;
    }
    return length && strlen(name) <= 255;
}

static void copy_digest(const struct document *document, const struct json *json, char digest[65]) {
    const char *text = ourcc_expect(document, json, JSON_TEXT, "a digest")->text;
    if (strlen(text) != 64) ourcc_damaged(document, "list of members is damaged: a digest");
    memcpy(digest, text, 65);
}

static bool is_weights(const char *name) { return strncmp(name, "weights/", 8) == 0; }

/* name, size, checksum, digest, and null or the size and the digest of the header */
static struct member read_member_entry(const struct document *document, const struct json *entry) {
    struct member member = {0};
    if (entry->kind != JSON_LIST || entry->count != 5) ourcc_damaged(document, "list of members is damaged");
    const struct json *name = entry->first, *size = name->next, *crc = size->next, *digest = crc->next, *head = digest->next;
    member.name = ourcc_expect(document, name, JSON_TEXT, "name of a member")->text;
    if (!is_member_name(member.name)) ourcc_damaged(document, "list of members is damaged: name '%.80s' is not allowed", member.name);
    if (size->kind != JSON_INTEGER || size->integer < 0 || size->integer >= MOST_SIZE || crc->kind != JSON_INTEGER || crc->integer < 0 ||
        crc->integer > UINT32_MAX)
        ourcc_damaged(document, "list of members is damaged: size or checksum of %s is out of range", member.name);
    member.size = (uint64_t)size->integer;
    member.crc = (uint32_t)crc->integer;
    copy_digest(document, digest, member.digest);
    size_t length = strlen(member.name);
    if (is_weights(member.name) && (length < 21 || strcmp(member.name + length - 12, ".safetensors") != 0))
        ourcc_damaged(document, "list of members is damaged: weights member %s is not a safetensors file", member.name);
    if (head->kind == JSON_NULL) return member;
    if (head->kind != JSON_LIST || head->count != 2 || head->first->kind != JSON_INTEGER || head->first->integer < 0)
        ourcc_damaged(document, "list of members is damaged: digest of %s", member.name);
    member.head = (uint64_t)head->first->integer;
    copy_digest(document, head->first->next, member.head_digest);
    return member;
}

static void read_members(const struct document *document, struct file *file, const char *comment) {
    const struct json *list = ourcc_need(document, file->manifest, "members", JSON_LIST);
    struct member *members = ourcc_take(document->task, document->memory, list->count + 1, sizeof *members), *next = members + 1;
    if (list->count > MOST_MEMBERS) ourcc_damaged(document, "list of members is too long");
    members[0] = file->members[0];
    for (const struct json *entry = list->first; entry; entry = entry->next) *next++ = read_member_entry(document, entry);
    file->members = members;
    file->count = list->count + 1;
    for (size_t n = 0; n < file->count; ++n)
        if (!ourcc_name(document->task, document->memory, &file->names, members[n].name, n))
            ourcc_damaged(document, "list of members names %s twice", members[n].name);
    /* So no place below wraps around. */
    uint64_t total = 0;
    for (size_t n = 0; n < file->count; ++n)
        if ((total += members[n].size) > file->size) ourcc_damaged(document, "members have more bytes than the file");
    ourcc_place(members, file->count);
    ourcc_check_archive(document, file->handle, file->size, members, file->count, comment);
}

/* --- members --- */

static bool fits(const struct digest *digest, const char expected[65]) {
    char found[65];
    ourcc_hexadecimal(digest, found);
    return strcmp(found, expected) == 0;
}

/* Bytes of a member that is no weights, which must be what was written. */
static const char *checked(const struct document *document, const struct file *file, const struct member *member) {
    char *data = ourcc_take(document->task, document->memory, (size_t)member->size + 1, 1);
    if (!ourcc_read_at(file->handle, member->data, data, (size_t)member->size)) ourcc_damaged(document, "engine ends early");
    struct digest digest = ourcc_member_digest(document->task, data, (size_t)member->size);
    if (!fits(&digest, member->digest) || ourcc_crc32(0, data, (size_t)member->size) != member->crc)
        ourcc_damaged(document, "%s does not match its digest", member->name);
    return data;
}

const char *ourcc_read_member(struct task *task, struct file *file, const char *name, size_t *size) {
    struct document document = {task, &file->memory, file->path, ""};
    size_t number;
    if (!ourcc_find(&file->names, name, &number)) return NULL;
    *size = (size_t)file->members[number].size;
    return checked(&document, file, &file->members[number]);
}

/* Maps the file in large pages, where the system has them: weights wait less for memory there. */
static void map_file(const struct document *document, struct file *file) {
    void *map = mmap(NULL, (size_t)file->size, PROT_READ, MAP_SHARED, file->handle, 0);
    if (map == MAP_FAILED) ourcc_fail(document->task, OURCC_SYSTEM, "cannot map engine %.200s: %s", file->path, strerror(errno));
    file->map = map;
#ifdef MADV_HUGEPAGE
    madvise(map, (size_t)file->size, MADV_HUGEPAGE);
#endif
}

static void check_weights(const struct document *document, struct file *file, size_t number, bool is_copied, int threads) {
    const struct member *member = &file->members[number];
    if (member->head < 8 || member->head > member->size) ourcc_damaged(document, "%s has no digest of its header", member->name);
    char *head = ourcc_take(document->task, document->memory, (size_t)member->head + 1, 1);
    if (!ourcc_read_at(file->handle, member->data, head, (size_t)member->head)) ourcc_damaged(document, "engine ends early");
    struct digest digest = ourcc_sha256(head, (size_t)member->head);
    if (!fits(&digest, member->head_digest)) ourcc_damaged(document, "header of %s does not match its digest", member->name);
    file->heads[number] = head;
    if (is_copied) ourcc_reserve(document->task, &file->copies[number], member->size, member->name);
    struct file_part part = {file->handle, file->map, member->data, member->size};
    digest = ourcc_file_digest(document->task, &part, file->copies[number].data, threads);
    if (!fits(&digest, member->digest)) ourcc_damaged(document, "%s does not match its digest", member->name);
}

/* A member that is looked at once needs its memory no longer. */
static void check_member(const struct document *document, const struct file *file, const struct member *member) {
    struct file_part part = {file->handle, NULL, member->data, member->size};
    struct digest digest = ourcc_file_digest(document->task, &part, NULL, 1);
    if (!fits(&digest, member->digest)) ourcc_damaged(document, "%s does not match its digest", member->name);
    char piece[OURCC_PAGE];
    uint32_t crc = 0;
    for (uint64_t done = 0; done < member->size; done += sizeof piece) {
        size_t count = member->size - done < sizeof piece ? (size_t)(member->size - done) : sizeof piece;
        if (!ourcc_read_at(file->handle, member->data + done, piece, count)) ourcc_damaged(document, "engine ends early");
        crc = ourcc_crc32(crc, piece, count);
    }
    if (crc != member->crc) ourcc_damaged(document, "%s does not match its digest", member->name);
}

static void check_members(const struct document *document, struct file *file, const ourcc_options *options) {
    file->heads = ourcc_take(document->task, document->memory, file->count, sizeof *file->heads);
    file->copies = ourcc_take(document->task, document->memory, file->count, sizeof *file->copies);
    for (size_t n = 1; n < file->count; ++n) {
        const struct member *member = &file->members[n];
        if (!is_weights(member->name)) {
            check_member(document, file, member);
            continue;
        }
        bool is_copied = options->copy_weights || member->size <= SMALL;
        if (!is_copied && !file->map) map_file(document, file);
        check_weights(document, file, n, is_copied, ourcc_cpu_count());
    }
}

void ourcc_read_file(struct task *task, struct file *file, const char *path, const ourcc_options *options) {
    struct stat status;
    unsigned char magic[4];
    file->path = ourcc_take_text(task, &file->memory, path, strlen(path));
    struct document document = {task, &file->memory, file->path, ""};
    /* A pipe would be waited for. */
    file->handle = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (file->handle < 0 || fstat(file->handle, &status) != 0)
        ourcc_fail(task, OURCC_SYSTEM, "cannot read engine %.400s: %s", path, strerror(errno));
    if (!S_ISREG(status.st_mode)) ourcc_fail(task, OURCC_DAMAGED, "%.400s: not a regular file, expected an engine", path);
    file->size = (uint64_t)status.st_size;
    if (file->size < OURCC_PAGE + END_SIZE + COMMENT || !ourcc_read_at(file->handle, 0, magic, 4) || memcmp(magic, "PK\3\4", 4) != 0)
        ourcc_damaged(&document, "not an engine: got %llu bytes that do not start as one", (unsigned long long)file->size);
    const char *comment = find_comment(&document, file);
    file->manifest = read_manifest(&document, file, comment);
    read_members(&document, file, comment);
    check_members(&document, file, options);
}

void ourcc_free_file(struct file *file) {
    if (file->map) munmap(file->map, (size_t)file->size);
    for (size_t n = 0; file->copies && n < file->count; ++n) ourcc_free_block(&file->copies[n]);
    if (file->handle >= 0) close(file->handle);
    file->handle = -1;
    ourcc_free_memory(&file->memory);
}
