/* Elements in order, for routines that select and sort.
 *
 * An element's key is an unsigned integer: those of smaller keys come first, in the order that is asked for. Both zeros have one
 * key, and so has every NaN, that of what is largest. Of equal keys the first place comes first.
 *
 * Included where KEY, PLACE and OF(name) are defined: KEY holds a key, SIGNED_KEY
 * one with a sign, PLACE the place of an element in a line. */
#ifndef ORDER_H
#define ORDER_H
#include "ourcc.h"
#include <stdbool.h>
#include <string.h>

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC optimize("O3")
#endif

#define BLOCK 512 /* keys that are made at once */
#define GROUP 64  /* keys that are looked at at once for one that may be chosen, */
#define PART 16   /* and then so many of them; */
#define SMALL 4   /* or, where too few have so many, what each gives one key of for the first bound */
#define FEW 40    /* pairs that are sorted by insertion */
#define DIGITS 256

enum kind { UNSIGNED, SIGNED, FLOAT, FLOAT_OF_ONE_ZERO }; /* where there is one zero, minus zero is NaN */

/* What the elements are: of their magnitudes as integers the largest that is a number, and whether the largest come first. */
struct format {
    int64_t bits;
    enum kind kind;
    uint64_t most;
    bool is_descending;
};

/* `count` elements of x, each `stride` behind the other. */
struct line {
    const uint8_t *x;
    int64_t start, stride, size;
    const struct format *format;
};

/* An element narrower than a byte, the first one in the lowest bits. */
static uint8_t narrow(const uint8_t *x, int64_t place, int64_t bits) {
    return (uint8_t)(x[place * bits >> 3] >> (place * bits & 7) & ((1 << bits) - 1));
}

/* One element becomes another one; what is narrower than a byte is put where zeros are. */
static void put(uint8_t *to, int64_t place, const uint8_t *x, int64_t from, int64_t bits) {
    if (bits < 8)
        to[place * bits >> 3] |= (uint8_t)(narrow(x, from, bits) << (place * bits & 7));
    else if (bits == 8)
        to[place] = x[from];
    else if (bits == 16)
        ((uint16_t *)to)[place] = ((const uint16_t *)x)[from];
    else if (bits == 32)
        ((uint32_t *)to)[place] = ((const uint32_t *)x)[from];
    else
        ((uint64_t *)to)[place] = ((const uint64_t *)x)[from];
}

static int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
#endif

/* Elements first.. of a line, as they are in memory. */
static void OF(load)(const struct line *line, int64_t first, int64_t count, KEY *keys) {
    int64_t bits = line->format->bits, start = line->start + first * line->stride, stride = line->stride;
#define LOAD(TYPE)                                                       \
    {                                                                    \
        const TYPE *x = (const TYPE *)line->x + start;                   \
        if (stride == 1)                                                 \
            for (int64_t n = 0; n < count; ++n) keys[n] = (KEY)x[n];     \
        else                                                             \
            for (int64_t n = 0; n < count; ++n) keys[n] = (KEY)x[n * stride]; \
    }
    if (bits < 8)
        for (int64_t n = 0; n < count; ++n) keys[n] = narrow(line->x, start + n * stride, bits);
    else if (bits == 8)
        LOAD(uint8_t)
    else if (bits == 16)
        LOAD(uint16_t)
    else if (bits == 32)
        LOAD(uint32_t)
    else
        LOAD(uint64_t)
#undef LOAD
}

/* The keys of elements first.. of a line. */
static void OF(read)(const struct line *line, int64_t first, int64_t count, KEY *keys) {
    const struct format *format = line->format;
    KEY sign = (KEY)1 << (format->bits - 1), flip = format->is_descending ? (KEY)-1 : 0, none = (KEY)-1 ^ flip;
    OF(load)(line, first, count, keys);
    if (format->kind == UNSIGNED)
        for (int64_t n = 0; n < count; ++n) keys[n] ^= flip;
    else if (format->kind == SIGNED)
        for (int64_t n = 0; n < count; ++n) keys[n] ^= sign ^ flip;
    else {
        int shift = (int)format->bits - 1;
        SIGNED_KEY most = (SIGNED_KEY)format->most;
        KEY middle = sign + 1 + flip; /* of zero: no number has the key of NaN */
        if (format->kind == FLOAT_OF_ONE_ZERO) /* its NaN as what is above all numbers by its magnitude */
            for (int64_t n = 0; n < count; ++n) keys[n] = keys[n] == sign ? sign << 1 : keys[n];
        for (int64_t n = 0; n < count; ++n) {
            KEY magnitude = keys[n] & ~sign, turn = (0 - (keys[n] >> shift)) ^ flip, key = (magnitude ^ turn) - turn + middle;
            keys[n] = (SIGNED_KEY)magnitude > most ? none : key;
        }
    }
}

struct OF(pair) {
    KEY key;
    PLACE place;
};

/* What a thread works in. */
struct OF(room) {
    PLACE counts[sizeof(KEY)][DIGITS];
    KEY block[BLOCK];
};

/* --- selection --- */

/* How many keys are no larger than another. */
static int64_t OF(count)(const KEY *keys, int64_t size, KEY most) {
    int64_t found = 0;
    for (int64_t first = 0; first < size; first += BLOCK) {
        KEY some = 0;
        int64_t end = smaller(first + BLOCK, size);
        for (int64_t n = first; n < end; ++n) some += keys[n] <= most;
        found += (int64_t)some;
    }
    return found;
}

/* A key that no fewer than `least` keys are no larger than; nor more than `most`, where a key has that. */
static KEY OF(reach)(const KEY *keys, int64_t size, int64_t least, int64_t most) {
    KEY low = keys[0], high = keys[0];
    for (int64_t n = 1; n < size; ++n) {
        low = keys[n] < low ? keys[n] : low;
        high = keys[n] > high ? keys[n] : high;
    }
    while (low < high) {
        KEY middle = low + (high - low) / 2;
        int64_t found = OF(count)(keys, size, middle);
        if (found < least)
            low = middle + 1;
        else
            high = middle;
        if (found >= least && found <= most) break;
    }
    return high;
}

/* Leaves the first `kept` of more keys with their places, in the order of places; the last key of them. */
static KEY OF(thin)(KEY *keys, PLACE *places, int64_t size, int64_t kept) {
    KEY high = OF(reach)(keys, size, kept, kept), last = 0;
    int64_t equal = kept - (high ? OF(count)(keys, size, high - 1) : 0), to = 0;
    for (int64_t n = 0; n < size && to < kept; ++n) {
        KEY key = keys[n];
        bool is_equal = key == high, is_kept = (key < high) | (is_equal & (equal > 0));
        equal -= is_equal;
        last = is_kept & (key > last) ? key : last;
        keys[to] = key;
        places[to] = places[n];
        to += is_kept;
    }
    return last;
}

static inline __attribute__((always_inline)) KEY OF(least)(const KEY *keys, int64_t size) {
    KEY least = keys[0];
    for (int64_t n = 1; n < size; ++n) least = keys[n] < least ? keys[n] : least;
    return least;
}

/* How many keys select has room for. */
static int64_t OF(selection)(int64_t size, int64_t kept) { return smaller(2 * kept, size) + BLOCK / SMALL; }

/* A key that `kept` of a block are no larger than: so many parts of it have one. It is worked out where keys are held. */
static KEY OF(bound)(const KEY *block, int64_t size, int64_t kept, KEY *keys) {
    int64_t part = 2 * kept <= size / PART ? PART : SMALL, parts = size / part;
    if (2 * kept > parts) return (KEY)-1;
    for (int64_t n = 0; n < parts; ++n)
        keys[n] = part == PART ? OF(least)(block + n * PART, PART) : OF(least)(block + n * SMALL, SMALL);
    return OF(reach)(keys, parts, kept, kept + kept / 2);
}

/* The first `kept` of a line, more than 0 and fewer than all, and maybe others, few in all; how many, in the order of places.
 *
 * One pass, which passes over what cannot be one of them. */
static int64_t OF(select)(const struct line *line, int64_t kept, KEY *keys, PLACE *places, KEY *block) {
    int64_t held = 0, room = OF(selection)(line->size, kept);
    KEY most = (KEY)-1; /* what is larger is none of them */
    bool is_over = false;
    for (int64_t first = 0; first < line->size && !is_over; first += BLOCK) {
        int64_t size = smaller(BLOCK, line->size - first);
        OF(read)(line, first, size, block);
        for (int64_t n = size; n < BLOCK && n % GROUP; ++n) block[n] = (KEY)-1;
        if (first == 0) most = OF(bound)(block, size, kept, keys);
        for (int64_t at = 0; at < size; at += PART) {
            if (at % GROUP == 0 && OF(least)(block + at, GROUP) > most) {
                at += GROUP - PART;
                continue;
            }
            if (OF(least)(block + at, PART) > most) continue;
            if (held + PART > room) {
                KEY last = OF(thin)(keys, places, held, kept);
                held = kept;
                is_over = last == 0;
                if (is_over) break;
                most = last - 1;
            }
            int64_t end = smaller(at + PART, size);
            for (int64_t n = at; n < end; ++n) {
                keys[held] = block[n];
                places[held] = (PLACE)(first + n);
                held += block[n] <= most;
            }
        }
    }
    if (held <= FEW || held == kept) return held;
    OF(thin)(keys, places, held, kept);
    return kept;
}

/* --- sorting --- */

static void OF(insert)(struct OF(pair) *pairs, int64_t size) {
    for (int64_t n = 1; n < size; ++n) {
        struct OF(pair) pair = pairs[n];
        int64_t at = n;
        for (; at > 0 && pairs[at - 1].key > pair.key; --at) pairs[at] = pairs[at - 1];
        pairs[at] = pair;
    }
}

/* Sorts pairs by their keys, equal ones as they stand, from the last digit to the first; they end here or in `other`. */
static struct OF(pair) *OF(sort)(struct OF(pair) *pairs, struct OF(pair) *other, int64_t size, PLACE counts[][DIGITS]) {
    if (size <= FEW) {
        OF(insert)(pairs, size);
        return pairs;
    }
    memset(counts, 0, sizeof(KEY) * sizeof counts[0]);
    for (int64_t n = 0; n < size; ++n)
        for (unsigned digit = 0; digit < sizeof(KEY); ++digit) ++counts[digit][pairs[n].key >> 8 * digit & 255];
    for (unsigned digit = 0; digit < sizeof(KEY); ++digit) {
        PLACE *next = counts[digit], before = 0;
        if (next[pairs[0].key >> 8 * digit & 255] == (PLACE)size) continue; /* all have the same */
        for (int n = 0; n < DIGITS; ++n) {
            PLACE found = next[n];
            next[n] = before;
            before += found;
        }
        for (int64_t n = 0; n < size; ++n) other[next[pairs[n].key >> 8 * digit & 255]++] = pairs[n];
        struct OF(pair) *sorted = other;
        other = pairs;
        pairs = sorted;
    }
    return pairs;
}

/* --- lines --- */

/* The first `kept` of each of the lines first..last, which lie `inner` beside each other: elements, and their places in the line. */
static int32_t OF(lines)(const struct format *format, const uint8_t *x, uint8_t *values, int64_t *indices, int64_t size, int64_t inner,
                         int64_t kept, int64_t first, int64_t last) {
    int64_t few = kept < size ? OF(selection)(size, kept) : 0, most = kept > FEW ? kept : FEW; /* all are not selected first */
    size_t bytes = sizeof(struct OF(room)) + (size_t)most * 2 * sizeof(struct OF(pair)) + (size_t)few * (sizeof(KEY) + sizeof(PLACE));
    uint8_t *memory = ourcc_take((bytes + 63) & ~(size_t)63);
    if (!memory) return ENOMEM;
    struct OF(room) *room = (void *)memory;
    struct OF(pair) *pairs = (void *)(room + 1), *other = pairs + most;
    KEY *keys = (void *)(other + most);
    PLACE *places = (void *)(keys + few);
    for (int64_t number = first; number < last; ++number) {
        int64_t outer = number / inner, beside = number % inner;
        struct line line = {x, outer * size * inner + beside, inner, size, format};
        int64_t held = size;
        if (kept < size) {
            held = OF(select)(&line, kept, keys, places, room->block);
            for (int64_t n = 0; n < held; ++n) pairs[n] = (struct OF(pair)){keys[n], places[n]};
        } else
            for (int64_t start = 0; start < size; start += BLOCK) {
                int64_t count = smaller(BLOCK, size - start);
                OF(read)(&line, start, count, room->block);
                for (int64_t n = 0; n < count; ++n) pairs[start + n] = (struct OF(pair)){room->block[n], (PLACE)(start + n)};
            }
        struct OF(pair) *sorted = OF(sort)(pairs, other, held, room->counts);
        int64_t to = outer * kept * inner + beside;
        for (int64_t n = 0; n < kept; ++n) {
            int64_t place = (int64_t)sorted[n].place;
            put(values, to + n * inner, x, line.start + place * inner, format->bits);
            indices[to + n * inner] = place;
        }
    }
    ourcc_give_back(&memory);
    return 0;
}
