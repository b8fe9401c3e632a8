/* The op `sample_token` in C, a row of logits for each point; `ir/ops/sample_token.py` says what it computes.
 *
 * Nothing is sorted. What top-k and top-p keep are the tokens down to some least number: it is found bit by bit, each time by
 * one pass over the row that counts, or adds up, what is no smaller. */
#include "ourcc.h"
#include <float.h>
#include <math.h>
#include <string.h>

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC optimize("O3,no-trapping-math")
#define IN_ANY_ORDER __attribute__((optimize("O3,associative-math,no-signed-zeros,no-trapping-math")))
#else
#define IN_ANY_ORDER
#endif

#define BLOCK 1024 /* weights that are added up at once where a draw looks for its token */

static float of_bits(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* --- numbers that are no smaller than another one --- */

/* How many there are. */
static double count_from(const float *x, int64_t size, float least) {
    int32_t count = 0;
    for (int64_t n = 0; n < size; ++n) count += x[n] >= least;
    return count;
}

/* What they add up to. */
IN_ANY_ORDER static double mass_from(const float *x, int64_t size, float least) {
    double mass = 0;
    for (int64_t n = 0; n < size; ++n) mass += x[n] >= least ? x[n] : 0.0f;
    return mass;
}

typedef double (*measure)(const float *x, int64_t size, float least);

/* A float by its bits, put so that greater bits are greater numbers. */
static float of_order(uint32_t order) { return of_bits(order >> 31 ? order & 0x7fffffff : ~order); }

/* Leaves of x the largest, down to where their measure is `enough`: of equals the first. Others become `none`. */
static void keep(measure of, float *x, int64_t size, double enough, float none) {
    uint32_t order = 0;
    float least = -INFINITY, next = INFINITY; /* from `least` on it is enough, from `next` on it is not */
    double from_least = INFINITY, from_next = 0;
    for (uint32_t bit = UINT32_C(1) << 31; bit; bit >>= 1) {
        float tried = of_order(order | bit);
        double found = of(x, size, tried);
        if (found >= enough) {
            order |= bit;
            least = tried;
            from_least = found;
        } else {
            next = tried;
            from_next = found;
        }
        if (from_least - from_next < 1.5 * of(&least, 1, least)) break; /* a single one lies between them */
    }
    if (count_from(x, size, least) - count_from(x, size, next) > 1)
        for (int64_t n = 0; n < size; ++n) {
            if (x[n] < least || x[n] >= next) continue;
            if (from_next >= enough) x[n] = none;
            from_next += of(&least, 1, least);
        }
    for (int64_t n = 0; n < size; ++n) x[n] = x[n] >= least ? x[n] : none;
}

/* --- scores and weights --- */

/* The largest of the scores; false where one is NaN, or the largest is no finite number. */
static int best_of(const float *x, int64_t size, float *best) {
    int32_t high = INT32_MIN, low = INT32_MAX; /* floats as integers of the same order */
    for (int64_t n = 0; n < size; ++n) {
        int32_t bits;
        memcpy(&bits, &x[n], sizeof bits);
        bits ^= bits >> 31 & 0x7fffffff;
        high = bits > high ? bits : high;
        low = bits < low ? bits : low;
    }
    const int32_t infinite = 0x7f800000;
    *best = of_bits((uint32_t)(high ^ (high >> 31 & 0x7fffffff)));
    return high < infinite && high > ~infinite && low >= ~infinite;
}

/* Scores [size] become weights e^((score - best) / temperature); what is smaller than e^-87 is 0. */
static void weigh(float *x, int64_t size, float best, double temperature) {
    double rate = 1 / temperature; /* within what leaves every product a number, and none that is slow */
    rate = rate < 1e300 ? rate > 1e-100 ? rate : 1e-100 : 1e300;
    for (int64_t n = 0; n < size; ++n) {
        double power = ((double)x[n] - best) * rate, held = power < -87 ? -87 : power;
        double whole = held * 0x1.71547652b82fep+0 + 0x1.8p52;
        int64_t scale;
        memcpy(&scale, &whole, sizeof scale);
        whole -= 0x1.8p52;
        double r = held - whole * 0x1.62e42fefa39efp-1, factor;
        scale = (int64_t)(((uint64_t)scale << 52) + UINT64_C(0x3ff0000000000000));
        memcpy(&factor, &scale, sizeof factor);
        double sum = 1.0 / 362880;
        sum = sum * r + 1.0 / 40320;
        sum = sum * r + 1.0 / 5040;
        sum = sum * r + 1.0 / 720;
        sum = sum * r + 1.0 / 120;
        sum = sum * r + 1.0 / 24;
        sum = sum * r + 1.0 / 6;
        sum = sum * r + 0.5;
        sum = sum * r + 1;
        sum = sum * r + 1;
        x[n] = power < -87 ? 0.0f : (float)(sum * factor);
    }
}

/* A row's scores with what is said of single tokens. */
static void change(float *x, int64_t size, int64_t row, const int64_t *edited, const double *edits, int64_t count) {
    for (int64_t n = 0; n < count; ++n) {
        int64_t token = edited[2 * n + 1];
        if (edited[2 * n] != row || token < 0 || token >= size) continue;
        double score = x[token], penalty = edits[2 * n];
        score = (score > 0 ? score / penalty : score * penalty) + edits[2 * n + 1];
        x[token] = (float)(score > FLT_MAX ? FLT_MAX : score < -FLT_MAX && score > -INFINITY ? -FLT_MAX : score);
    }
}

/* --- the draw --- */

/* The first number of the block `place` of Philox 4x64-10 with the key `seed`, from 0 to 1 (Salmon et al., 2011). */
static double uniform(uint64_t seed, uint64_t place) {
    uint64_t c[4] = {place, 0, 0, 0}, k[2] = {seed, 0};
    for (int round = 0; round < 10; ++round) {
        unsigned __int128 a = (unsigned __int128)UINT64_C(0xD2E7470EE14C6C93) * c[0];
        unsigned __int128 b = (unsigned __int128)UINT64_C(0xCA5A826395121157) * c[2];
        uint64_t next[4] = {(uint64_t)(b >> 64) ^ c[1] ^ k[0], (uint64_t)b, (uint64_t)(a >> 64) ^ c[3] ^ k[1], (uint64_t)a};
        memcpy(c, next, sizeof c);
        k[0] += UINT64_C(0x9E3779B97F4A7C15);
        k[1] += UINT64_C(0xBB67AE8584CAA73B);
    }
    return (double)(c[0] >> 11) * 0x1p-53;
}

/* The token of which the weights before it are at most `share` of all, and with it more. */
static int64_t drawn(const float *weights, int64_t size, double share) {
    double all = 0, before = 0;
    int64_t last = 0;
    for (int64_t n = 0; n < size; n += BLOCK) all += mass_from(weights + n, size - n < BLOCK ? size - n : BLOCK, 0);
    double wanted = share * all;
    for (int64_t n = 0; n < size; n += BLOCK) {
        int64_t count = size - n < BLOCK ? size - n : BLOCK;
        double mass = mass_from(weights + n, count, 0);
        if (mass > 0) last = n;
        if (wanted < before + mass) break;
        before += mass;
    }
    int64_t token = last, end = size - last < BLOCK ? size : last + BLOCK;
    for (int64_t n = last; n < end; ++n) {
        if (!(weights[n] > 0)) continue;
        token = n;
        before += weights[n];
        if (wanted < before) break;
    }
    return token;
}

enum { LOGITS, TEMPERATURE, TOP_K, TOP_P, MIN_P, SEED, PLACE, EDITED, EDITS, TOKEN, WEIGHTS };
enum { ROWS_SIZE, VOCABULARY_SIZE, EDITS_SIZE = 8 };

static int64_t chosen(void *const *operands, const int64_t *sizes, int64_t row) {
    int64_t size = sizes[VOCABULARY_SIZE], top_k = ((const int64_t *)operands[TOP_K])[row];
    double temperature = ((const double *)operands[TEMPERATURE])[row], top_p = ((const double *)operands[TOP_P])[row];
    float *x = (float *)operands[WEIGHTS] + row * size, best, min_p = (float)((const double *)operands[MIN_P])[row];
    memcpy(x, (const float *)operands[LOGITS] + row * size, (size_t)size * sizeof *x);
    change(x, size, row, operands[EDITED], operands[EDITS], sizes[EDITS_SIZE]);
    if (!best_of(x, size, &best)) return -1;
    if (!(temperature > 0)) {
        int64_t token = 0;
        while (x[token] != best) ++token;
        return token;
    }
    if (top_k > 0 && (double)top_k < count_from(x, size, -FLT_MAX)) keep(count_from, x, size, (double)top_k, -INFINITY);
    weigh(x, size, best, temperature);
    double enough = top_p * mass_from(x, size, 0);
    enough = enough > DBL_MIN ? enough : DBL_MIN; /* the likeliest stays */
    min_p = min_p < 1 ? min_p : 1;
    if (min_p > 0)
        for (int64_t n = 0; n < size; ++n) x[n] = x[n] >= min_p ? x[n] : 0.0f;
    if (top_p < 1 && enough < mass_from(x, size, 0)) keep(mass_from, x, size, enough, 0);
    return drawn(x, size, uniform(((const uint64_t *)operands[SEED])[row], ((const uint64_t *)operands[PLACE])[row] + 1));
}

static int32_t sample_token(void *const *operands, const int64_t *sizes, int64_t first, int64_t last) {
    for (int64_t row = first; row < last; ++row) {
        int64_t size = sizes[VOCABULARY_SIZE], token = chosen(operands, sizes, row);
        float *x = (float *)operands[WEIGHTS] + row * size;
        ((int64_t *)operands[TOKEN])[row] = token;
        if (token >= 0 && ((const double *)operands[TEMPERATURE])[row] > 0) continue;
        memset(x, 0, (size_t)size * sizeof *x);
        if (token >= 0) x[token] = 1;
    }
    return 0;
}

const ourcc_kernel sample_token_descriptor = {sample_token, 0, 0};
