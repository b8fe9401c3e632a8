/* Sizes as expressions over symbols: read from the text that plans hold, and evaluated so that nothing wraps around. */
#include "internal.h"

#include <stdio.h>
#include <string.h>

#define LONGEST 4096
#define DEEPEST 64
#define LARGEST_NUMBER INT64_C(999999999999999999)

__extension__ typedef __int128 wide;

/* sum := [-] product (+|- product)*, product := atom (*|//|% atom)*, atom := number | name | (sum) | max(sum, sum) | min(sum, sum) */
struct parser {
    const struct document *document;
    const struct names *symbols;
    const char *text, *next;
    int depth;
};

static _Noreturn void wrong(const struct parser *parser) { ourcc_damaged(parser->document, "got the size '%.80s'", parser->text); }

/* Also goes over the spaces before it. */
static bool take(struct parser *parser, const char *sign) {
    while (*parser->next == ' ') ++parser->next;
    size_t length = strlen(sign);
    if (strncmp(parser->next, sign, length) != 0) return false;
    parser->next += length;
    return true;
}

static const struct dim *made(struct parser *parser, enum dim_kind kind, const struct dim *left, const struct dim *right) {
    struct dim *dim = ourcc_take(parser->document->task, parser->document->memory, 1, sizeof *dim);
    *dim = (struct dim){.kind = kind, .left = left, .right = right};
    return dim;
}

static const struct dim *number(struct parser *parser, int64_t value) {
    struct dim *dim = ourcc_take(parser->document->task, parser->document->memory, 1, sizeof *dim);
    *dim = (struct dim){.kind = DIM_NUMBER, .number = value};
    return dim;
}

static bool is_digit(char sign) { return sign >= '0' && sign <= '9'; }
static bool is_letter(char sign) { return (sign >= 'a' && sign <= 'z') || (sign >= 'A' && sign <= 'Z') || sign == '_'; }

static const struct dim *read_sum(struct parser *parser);

static const struct dim *read_name(struct parser *parser) {
    const char *first = parser->next;
    while (is_letter(*parser->next) || is_digit(*parser->next) || *parser->next == '.') ++parser->next;
    size_t length = (size_t)(parser->next - first);
    bool is_larger = length == 3 && strncmp(first, "max", 3) == 0, is_smaller = length == 3 && strncmp(first, "min", 3) == 0;
    if ((is_larger || is_smaller) && take(parser, "(")) {
        const struct dim *left = read_sum(parser);
        if (!take(parser, ",")) wrong(parser);
        const struct dim *right = read_sum(parser);
        if (!take(parser, ")")) wrong(parser);
        return made(parser, is_larger ? DIM_LARGER : DIM_SMALLER, left, right);
    }
    struct dim *dim = ourcc_take(parser->document->task, parser->document->memory, 1, sizeof *dim);
    const char *name = ourcc_take_text(parser->document->task, parser->document->memory, first, length);
    size_t symbol;
    if (!ourcc_find(parser->symbols, name, &symbol))
        ourcc_damaged(parser->document, "the size '%.80s' has the symbol %.80s, which is not declared", parser->text, name);
    *dim = (struct dim){.kind = DIM_SYMBOL, .number = (int64_t)symbol};
    return dim;
}

static const struct dim *read_atom(struct parser *parser) {
    if (take(parser, "(")) {
        const struct dim *inner = read_sum(parser);
        if (!take(parser, ")")) wrong(parser);
        return inner;
    }
    if (take(parser, "-")) {
        if (++parser->depth > DEEPEST) wrong(parser);
        const struct dim *inner = read_atom(parser);
        --parser->depth;
        return made(parser, DIM_PRODUCT, number(parser, -1), inner);
    }
    if (is_letter(*parser->next)) return read_name(parser);
    if (!is_digit(*parser->next)) wrong(parser);
    int64_t value = 0;
    for (; is_digit(*parser->next); ++parser->next) {
        if (value > LARGEST_NUMBER / 10) wrong(parser);
        value = value * 10 + (*parser->next - '0');
    }
    return number(parser, value);
}

static const struct dim *read_product(struct parser *parser) {
    const struct dim *result = read_atom(parser);
    for (;;) {
        if (take(parser, "//"))
            result = made(parser, DIM_QUOTIENT, result, read_atom(parser));
        else if (take(parser, "%"))
            result = made(parser, DIM_REMAINDER, result, read_atom(parser));
        else if (take(parser, "*"))
            result = made(parser, DIM_PRODUCT, result, read_atom(parser));
        else
            return result;
    }
}

static const struct dim *read_term(struct parser *parser, bool is_negative) {
    const struct dim *term = read_product(parser);
    return is_negative ? made(parser, DIM_PRODUCT, number(parser, -1), term) : term;
}

static const struct dim *read_sum(struct parser *parser) {
    if (++parser->depth > DEEPEST) wrong(parser);
    const struct dim *result = read_term(parser, take(parser, "-"));
    for (;;) {
        if (take(parser, "+"))
            result = made(parser, DIM_SUM, result, read_term(parser, false));
        else if (take(parser, "-"))
            result = made(parser, DIM_SUM, result, read_term(parser, true));
        else
            break;
    }
    --parser->depth;
    return result;
}

const struct dim *ourcc_read_dim(const struct document *document, const struct names *symbols, const struct json *json) {
    struct dim *result = ourcc_take(document->task, document->memory, 1, sizeof *result);
    if (json->kind == JSON_INTEGER) {
        char digits[24];
        if (json->integer > LARGEST_NUMBER || json->integer < -LARGEST_NUMBER) ourcc_damaged(document, "a size is out of range");
        int length = snprintf(digits, sizeof digits, "%lld", (long long)json->integer);
        *result = (struct dim){.kind = DIM_NUMBER, .number = json->integer};
        result->text = ourcc_take_text(document->task, document->memory, digits, (size_t)length);
        return result;
    }
    const char *text = ourcc_expect(document, json, JSON_TEXT, "a size")->text;
    struct parser parser = {document, symbols, text, text, 0};
    if (strlen(text) > LONGEST) ourcc_damaged(document, "a size is longer than %d characters", LONGEST);
    *result = *read_sum(&parser);
    if (*parser.next) wrong(&parser);
    result->text = text;
    return result;
}

static wide divided(wide left, wide right) {
    wide quotient = left / right;
    return quotient - ((left % right != 0) & ((left < 0) != (right < 0)));
}

static wide evaluate(struct task *task, const struct dim *dim, const int64_t *values) {
    if (dim->kind == DIM_NUMBER) return dim->number;
    if (dim->kind == DIM_SYMBOL) return values[dim->number];
    wide left = evaluate(task, dim->left, values), right = evaluate(task, dim->right, values), result = 0;
    bool is_beyond = false;
    switch (dim->kind) {
    case DIM_SUM: is_beyond = __builtin_add_overflow(left, right, &result); break;
    case DIM_PRODUCT: is_beyond = __builtin_mul_overflow(left, right, &result); break;
    case DIM_LARGER: result = left > right ? left : right; break;
    case DIM_SMALLER: result = left < right ? left : right; break;
    default:
        if (right == 0) ourcc_fail(task, OURCC_INPUT, "a size divides by zero for these inputs");
        /* Only the smallest number there is, by -1, does not fit. */
        is_beyond = right == -1 && __builtin_sub_overflow((wide)0, left, &result);
        if (!is_beyond) result = dim->kind == DIM_QUOTIENT ? divided(left, right) : left - divided(left, right) * right;
    }
    if (is_beyond) ourcc_fail(task, OURCC_MEMORY, "a size is beyond what any memory holds");
    return result;
}

int64_t ourcc_evaluate(struct task *task, const struct dim *dim, const int64_t *values) {
    wide value = evaluate(task, dim, values);
    if (value > INT64_MAX / 2 || value < INT64_MIN / 2)
        ourcc_fail(task, OURCC_MEMORY, "out of memory: the size %.200s is beyond what any memory holds", dim->text ? dim->text : "");
    return (int64_t)value;
}

bool ourcc_mentions(const struct dim *dim, size_t symbol) {
    if (dim->kind == DIM_NUMBER) return false;
    if (dim->kind == DIM_SYMBOL) return (size_t)dim->number == symbol;
    return ourcc_mentions(dim->left, symbol) || ourcc_mentions(dim->right, symbol);
}

/* The factor of a symbol in one term: a product of numbers and once the symbol. */
static int64_t factor_of_term(const struct dim *dim, size_t symbol) {
    if (dim->kind == DIM_SYMBOL) return (size_t)dim->number == symbol;
    if (dim->kind != DIM_PRODUCT) return 0;
    const struct dim *number = dim->left->kind == DIM_NUMBER ? dim->left : dim->right;
    const struct dim *other = number == dim->left ? dim->right : dim->left;
    int64_t inner = number->kind == DIM_NUMBER ? factor_of_term(other, symbol) : 0, result;
    return __builtin_mul_overflow(inner, number->number, &result) ? 0 : result;
}

int64_t ourcc_factor(const struct dim *dim, size_t symbol) {
    for (; dim->kind == DIM_SUM; dim = ourcc_mentions(dim->left, symbol) ? dim->left : dim->right)
        if (ourcc_mentions(dim->left, symbol) && ourcc_mentions(dim->right, symbol)) return 0;
    int64_t factor = factor_of_term(dim, symbol);
    return factor > 0 ? factor : 0;
}
