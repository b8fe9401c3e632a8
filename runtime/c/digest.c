/* Digests: SHA-256 and CRC-32 as they are defined, and the digests of members, whose pieces threads share. */
#include "internal.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

#define PIECE ((uint64_t)4 << 20)
#define MOST_THREADS 64
#define POPULATE_READ 22 /* Linux's MADV_POPULATE_READ, which older headers do not name */

/* --- CRC-32 (of zip archives), four bits at a time --- */

static const uint32_t crc_of_bits[16] = {
    0x00000000, 0x1db71064, 0x3b6e20c8, 0x26d930ac, 0x76dc4190, 0x6b6b51f4, 0x4db26158, 0x5005713c,
    0xedb88320, 0xf00f9344, 0xd6d6a3e8, 0xcb61b38c, 0x9b64c2b0, 0x86d3d2d4, 0xa00ae278, 0xbdbdf21c,
};

uint32_t ourcc_crc32(uint32_t before, const void *data, size_t size) {
    const uint8_t *bytes = data;
    uint32_t crc = ~before;
    for (size_t n = 0; n < size; ++n) {
        crc ^= bytes[n];
        crc = crc >> 4 ^ crc_of_bits[crc & 15];
        crc = crc >> 4 ^ crc_of_bits[crc & 15];
    }
    return ~crc;
}

/* --- SHA-256 (FIPS 180-4) --- */

static const uint32_t constants[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
};

static inline uint32_t turned(uint32_t word, int bits) { return word >> bits | word << (32 - bits); }

static void mix(uint32_t state[8], const uint8_t *data, size_t blocks) {
    for (; blocks; --blocks, data += 64) {
        uint32_t w[64], s[8];
        for (int n = 0; n < 16; ++n) {
            uint32_t word;
            memcpy(&word, data + 4 * n, 4);
            w[n] = __builtin_bswap32(word);
        }
        for (int n = 16; n < 64; ++n) {
            uint32_t low = turned(w[n - 15], 7) ^ turned(w[n - 15], 18) ^ w[n - 15] >> 3;
            uint32_t high = turned(w[n - 2], 17) ^ turned(w[n - 2], 19) ^ w[n - 2] >> 10;
            w[n] = w[n - 16] + low + w[n - 7] + high;
        }
        memcpy(s, state, sizeof s);
        for (int n = 0; n < 64; ++n) {
            uint32_t choice = (s[4] & s[5]) ^ (~s[4] & s[6]), majority = (s[0] & s[1]) ^ (s[0] & s[2]) ^ (s[1] & s[2]);
            uint32_t one = s[7] + (turned(s[4], 6) ^ turned(s[4], 11) ^ turned(s[4], 25)) + choice + constants[n] + w[n];
            uint32_t two = (turned(s[0], 2) ^ turned(s[0], 13) ^ turned(s[0], 22)) + majority;
            memmove(s + 1, s, 7 * sizeof *s);
            s[4] += one;
            s[0] = one + two;
        }
        for (int n = 0; n < 8; ++n) state[n] += s[n];
    }
}

#if defined(__x86_64__)
/* The same by the processor's own instructions, which keep the state as the words a b e f and c d g h. */
__attribute__((target("sha,sse4.1"))) static void mix_by_instruction(uint32_t state[8], const uint8_t *data, size_t blocks) {
    const __m128i swapped = _mm_set_epi8(12, 13, 14, 15, 8, 9, 10, 11, 4, 5, 6, 7, 0, 1, 2, 3);
    __m128i front = _mm_set_epi32((int)state[0], (int)state[1], (int)state[4], (int)state[5]);
    __m128i back = _mm_set_epi32((int)state[2], (int)state[3], (int)state[6], (int)state[7]);
    for (; blocks; --blocks, data += 64) {
        __m128i w[4], before = front, behind = back;
        for (int n = 0; n < 16; ++n) {
            __m128i *now = &w[n & 3], last = w[(n + 3) & 3];
            if (n < 4)
                *now = _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)(data + 16 * n)), swapped);
            else {
                __m128i sum = _mm_add_epi32(_mm_sha256msg1_epu32(*now, w[(n + 1) & 3]), _mm_alignr_epi8(last, w[(n + 2) & 3], 4));
                *now = _mm_sha256msg2_epu32(sum, last);
            }
            __m128i words = _mm_add_epi32(*now, _mm_loadu_si128((const __m128i *)(constants + 4 * n)));
            back = _mm_sha256rnds2_epu32(back, front, words);
            front = _mm_sha256rnds2_epu32(front, back, _mm_shuffle_epi32(words, 0x0e));
        }
        front = _mm_add_epi32(front, before);
        back = _mm_add_epi32(back, behind);
    }
    state[0] = (uint32_t)_mm_extract_epi32(front, 3), state[1] = (uint32_t)_mm_extract_epi32(front, 2);
    state[4] = (uint32_t)_mm_extract_epi32(front, 1), state[5] = (uint32_t)_mm_extract_epi32(front, 0);
    state[2] = (uint32_t)_mm_extract_epi32(back, 3), state[3] = (uint32_t)_mm_extract_epi32(back, 2);
    state[6] = (uint32_t)_mm_extract_epi32(back, 1), state[7] = (uint32_t)_mm_extract_epi32(back, 0);
}

static bool has_instruction(void) {
    unsigned a, b, c, d;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_SSE4_1)) return false;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (b & bit_SHA);
}
#endif

static void mix_best(uint32_t state[8], const uint8_t *data, size_t blocks) {
#if defined(__x86_64__)
    if (has_instruction()) {
        mix_by_instruction(state, data, blocks);
        return;
    }
#endif
    mix(state, data, blocks);
}

struct digest ourcc_sha256(const void *data, size_t size) {
    uint32_t state[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    uint8_t end[128] = {0};
    size_t rest = size % 64, blocks = rest < 56 ? 1 : 2;
    uint64_t bits = __builtin_bswap64((uint64_t)size * 8);
    struct digest digest;
    mix_best(state, data, size / 64);
    if (rest) memcpy(end, (const uint8_t *)data + (size - rest), rest);
    end[rest] = 0x80;
    memcpy(end + 64 * blocks - 8, &bits, 8);
    mix_best(state, end, blocks);
    for (int n = 0; n < 8; ++n) {
        uint32_t word = __builtin_bswap32(state[n]);
        memcpy(digest.bytes + 4 * n, &word, 4);
    }
    return digest;
}

void ourcc_hexadecimal(const struct digest *digest, char text[65]) {
    for (int n = 0; n < 32; ++n) {
        text[2 * n] = "0123456789abcdef"[digest->bytes[n] >> 4];
        text[2 * n + 1] = "0123456789abcdef"[digest->bytes[n] & 15];
    }
    text[64] = 0;
}

/* --- members --- */

static uint64_t pieces_of(uint64_t size) { return (size + PIECE - 1) / PIECE; }

static uint64_t piece_size(uint64_t size, uint64_t piece) {
    uint64_t left = size - piece * PIECE;
    return left < PIECE ? left : PIECE;
}

struct digest ourcc_member_digest(struct task *task, const void *data, size_t size) {
    struct memory memory = {0};
    size_t count = (size_t)pieces_of(size);
    struct digest *digests = ourcc_take(task, &memory, count + 1, sizeof *digests);
    for (size_t n = 0; n < count; ++n)
        digests[n] = ourcc_sha256((const char *)data + n * PIECE, (size_t)piece_size(size, n));
    struct digest digest = ourcc_sha256(digests, count * sizeof *digests);
    ourcc_free_memory(&memory);
    return digest;
}

bool ourcc_read_at(int handle, uint64_t first, void *into, size_t size) {
    for (char *next = into; size;) {
        ssize_t count = pread(handle, next, size, (off_t)first);
        if (count < 0 && errno == EINTR) continue;
        if (count <= 0) return false;
        next += count;
        first += (uint64_t)count;
        size -= (size_t)count;
    }
    return true;
}

/* The pieces of one member, which threads take one after the other. */
struct work {
    const struct file_part *part;
    char *into;
    struct digest *digests;
    _Atomic uint64_t next;
    atomic_bool has_failed, has_no_memory;
};

/* Has a piece in memory before it is read otherwise, which would choose small pages; what fails is left to that. */
static void bring(const struct file_part *part, uint64_t piece) {
#ifdef __linux__
    uint64_t first = part->first + piece * PIECE, start = first - first % (uint64_t)sysconf(_SC_PAGESIZE);
    if (part->map) madvise(part->map + start, (size_t)(first + piece_size(part->size, piece) - start), POPULATE_READ);
#else
    (void)part, (void)piece;
#endif
}

static void *digest_pieces(void *argument) {
    struct work *work = argument;
    const struct file_part *part = work->part;
    uint64_t count = pieces_of(part->size), piece;
    char *own = work->into ? NULL : malloc((size_t)piece_size(part->size, 0));
    if (!own && !work->into) atomic_store(&work->has_no_memory, true);
    while ((own || work->into) && (piece = atomic_fetch_add(&work->next, 1)) < count) {
        size_t size = (size_t)piece_size(part->size, piece);
        char *target = work->into ? work->into + piece * PIECE : own;
        bring(part, piece);
        if (!ourcc_read_at(part->handle, part->first + piece * PIECE, target, size)) {
            atomic_store(&work->has_failed, true);
            break;
        }
        work->digests[piece] = ourcc_sha256(target, size);
    }
    free(own);
    return NULL;
}

struct digest ourcc_file_digest(struct task *task, const struct file_part *part, char *into, int threads) {
    struct memory memory = {0};
    uint64_t count = pieces_of(part->size);
    pthread_t others[MOST_THREADS];
    int started = 0;
    struct work work = {.part = part, .into = into};
    work.digests = ourcc_take(task, &memory, (size_t)count + 1, sizeof *work.digests);
    while (started < threads - 1 && started < MOST_THREADS && (uint64_t)started + 1 < count &&
           pthread_create(&others[started], NULL, digest_pieces, &work) == 0)
        ++started;
    if (part->size) digest_pieces(&work);
    for (int n = 0; n < started; ++n) pthread_join(others[n], NULL);
    struct digest digest = ourcc_sha256(work.digests, (size_t)count * sizeof *work.digests);
    ourcc_free_memory(&memory);
    if (work.has_failed) ourcc_fail(task, OURCC_DAMAGED, "engine ends early, or cannot be read");
    if (work.has_no_memory) ourcc_fail(task, OURCC_MEMORY, "out of memory: %llu bytes are needed", (unsigned long long)PIECE);
    return digest;
}
