/* JSON (RFC 8259) as a tree in memory of the document's; what is not exactly that is damage. */
#include "internal.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define DEEPEST 200

void ourcc_damaged(const struct document *document, const char *format, ...) {
    char what[700];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(what, sizeof what, format, arguments);
    va_end(arguments);
    ourcc_fail(document->task, OURCC_DAMAGED, "%.200s: %s%s%s: the file was damaged, cut off or changed after it was written",
               document->path, document->member, *document->member ? " is damaged: " : "", what);
}

struct parser {
    const struct document *document;
    const char *first, *next, *end;
};

static _Noreturn void wrong(const struct parser *parser, const char *what) {
    ourcc_damaged(parser->document, "it is not valid JSON: %s at byte %zu", what, (size_t)(parser->next - parser->first));
}

static char peek(const struct parser *parser) { return parser->next < parser->end ? *parser->next : 0; }

static void skip_space(struct parser *parser) {
    while (parser->next < parser->end && strchr(" \t\n\r", *parser->next) && *parser->next) ++parser->next;
}

static bool take(struct parser *parser, const char *word) {
    size_t length = strlen(word);
    if ((size_t)(parser->end - parser->next) < length || memcmp(parser->next, word, length) != 0) return false;
    parser->next += length;
    return true;
}

static void expect(struct parser *parser, const char *word) {
    if (!take(parser, word)) wrong(parser, "something else stands where a sign is expected");
}

static unsigned four_digits(struct parser *parser) {
    unsigned code = 0;
    for (int n = 0; n < 4; ++n, ++parser->next) {
        const char *digits = "0123456789abcdef", sign = peek(parser);
        const char *found = strchr(digits, sign >= 'A' && sign <= 'F' ? sign + 32 : sign);
        if (!sign || !found) wrong(parser, "a code of a character is not four digits");
        code = code << 4 | (unsigned)(found - digits);
    }
    return code;
}

static char *put_utf8(char *next, unsigned code) {
    if (code < 0x80) {
        *next++ = (char)code;
        return next;
    }
    int more = code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
    *next++ = (char)((0xff00 >> (more + 1) & 0xff) | code >> 6 * more);
    while (more--) *next++ = (char)(0x80 | (code >> 6 * more & 0x3f));
    return next;
}

/* A character behind a backslash. */
static char *read_escape(struct parser *parser, char *next) {
    const char *names = "\"\\/bfnrt", *values = "\"\\/\b\f\n\r\t", sign = peek(parser);
    const char *found = sign ? strchr(names, sign) : NULL;
    ++parser->next;
    if (found) {
        *next++ = values[found - names];
        return next;
    }
    if (sign != 'u') wrong(parser, "an unknown escape");
    unsigned code = four_digits(parser);
    if (code >= 0xd800 && code < 0xdc00) {
        expect(parser, "\\u");
        unsigned low = four_digits(parser);
        if (low < 0xdc00 || low > 0xdfff) wrong(parser, "half a character");
        code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
    } else if (code >= 0xdc00 && code < 0xe000)
        wrong(parser, "half a character");
    if (!code) wrong(parser, "a zero byte in a text");
    return put_utf8(next, code);
}

/* A text between quotes; what it reads to is never longer than what was written. */
static const char *read_text(struct parser *parser) {
    expect(parser, "\"");
    const char *quote = parser->next;
    while (quote < parser->end && *quote != '"') quote += *quote == '\\' ? 2 : 1;
    if (quote >= parser->end) wrong(parser, "a text that does not end");
    char *text = ourcc_take(parser->document->task, parser->document->memory, (size_t)(quote - parser->next) + 1, 1), *next = text;
    while (parser->next < quote) {
        unsigned char sign = (unsigned char)*parser->next++;
        if (sign < 0x20) wrong(parser, "a control character in a text");
        if (sign == '\\')
            next = read_escape(parser, next);
        else
            *next++ = (char)sign;
    }
    expect(parser, "\"");
    return text;
}

static bool is_digit(char sign) { return sign >= '0' && sign <= '9'; }

static void read_number(struct parser *parser, struct json *json) {
    bool is_negative = take(parser, "-"), is_large = false;
    int64_t value = 0;
    json->kind = JSON_INTEGER;
    if (!is_digit(peek(parser))) wrong(parser, "no value");
    if (take(parser, "0") && is_digit(peek(parser))) wrong(parser, "a number that begins with 0");
    for (; is_digit(peek(parser)); ++parser->next) {
        int digit = is_negative ? -(*parser->next - '0') : *parser->next - '0';
        is_large |= __builtin_mul_overflow(value, 10, &value) || __builtin_add_overflow(value, digit, &value);
    }
    if (take(parser, ".")) {
        json->kind = JSON_REAL;
        if (!is_digit(peek(parser))) wrong(parser, "a number without digits");
        while (is_digit(peek(parser))) ++parser->next;
    }
    if (take(parser, "e") || take(parser, "E")) {
        json->kind = JSON_REAL;
        if (!take(parser, "+")) (void)take(parser, "-");
        if (!is_digit(peek(parser))) wrong(parser, "a number without digits");
        while (is_digit(peek(parser))) ++parser->next;
    }
    /* An integer of more than 64 bits is no size of anything. */
    if (json->kind == JSON_INTEGER && is_large) json->kind = JSON_REAL;
    json->integer = value;
}

static void read_value(struct parser *parser, struct json *json, int depth);

/* The parts of a list, or with keys of an object. */
static void read_parts(struct parser *parser, struct json *json, const char *end, bool has_keys, int depth) {
    struct json **last = &json->first;
    if (depth == DEEPEST) wrong(parser, "more than 200 lists in each other");
    skip_space(parser);
    if (take(parser, end)) return;
    do {
        struct json *part = ourcc_take(parser->document->task, parser->document->memory, 1, sizeof *part);
        skip_space(parser);
        if (has_keys) {
            part->key = read_text(parser);
            skip_space(parser);
            expect(parser, ":");
        }
        read_value(parser, part, depth + 1);
        skip_space(parser);
        *last = part;
        last = &part->next;
        ++json->count;
    } while (take(parser, ","));
    expect(parser, end);
}

static void read_value(struct parser *parser, struct json *json, int depth) {
    skip_space(parser);
    if (take(parser, "{")) {
        json->kind = JSON_OBJECT;
        read_parts(parser, json, "}", true, depth);
    } else if (take(parser, "[")) {
        json->kind = JSON_LIST;
        read_parts(parser, json, "]", false, depth);
    } else if (peek(parser) == '"') {
        json->kind = JSON_TEXT;
        json->text = read_text(parser);
    } else if (take(parser, "true"))
        json->kind = JSON_TRUE;
    else if (take(parser, "false"))
        json->kind = JSON_FALSE;
    else if (take(parser, "null"))
        json->kind = JSON_NULL;
    else
        read_number(parser, json);
}

const struct json *ourcc_read_json(const struct document *document, const char *text, size_t size) {
    struct parser parser = {document, text, text, text + size};
    struct json *json = ourcc_take(document->task, document->memory, 1, sizeof *json);
    read_value(&parser, json, 0);
    skip_space(&parser);
    if (parser.next != parser.end) wrong(&parser, "something follows the value");
    return json;
}

const struct json *ourcc_expect(const struct document *document, const struct json *value, enum json_kind kind, const char *what) {
    static const char *const names[] = {"null", "false", "true", "an integer", "a number", "a text", "a list", "an object"};
    if (!value) ourcc_damaged(document, "got no %s", what);
    bool is_truth = kind == JSON_TRUE && value->kind == JSON_FALSE;
    if (value->kind != kind && !is_truth)
        ourcc_damaged(document, "%s: got %s, expected %s", what, names[value->kind], kind == JSON_TRUE ? "true or false" : names[kind]);
    return value;
}

const struct json *ourcc_field(const struct json *object, const char *key) {
    if (object->kind != JSON_OBJECT) return NULL; /* A value that is its kind alone has no further fields. */
    for (const struct json *part = object->first; part; part = part->next)
        if (strcmp(part->key, key) == 0) return part;
    return NULL;
}

const struct json *ourcc_part_of(const struct document *document, const struct json *object, const char *key, enum json_kind kind) {
    const struct json *part = ourcc_field(object, key);
    return part ? ourcc_expect(document, part, kind, key) : NULL;
}

const struct json *ourcc_need(const struct document *document, const struct json *object, const char *key, enum json_kind kind) {
    const struct json *part = ourcc_part_of(document, object, key, kind);
    if (!part) ourcc_damaged(document, "got no %s", key);
    return part;
}
