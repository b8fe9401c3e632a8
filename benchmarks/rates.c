/* What a machine does at best, on so many threads at once: multiply-adds of each kind that it has, reading and copying with four streams.

A rate is work over the time from the moment when all threads begin to the moment when the last one ends. */
#include <immintrin.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define MOST_THREADS 1024
#define CHAINS(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) /* twelve hide the latency of each */
#define KEEP(value) __asm__ volatile("" : "+" REGISTER(value)) /* nothing is computed before it is asked for */

#ifdef __AVX512F__
#define BYTES 64
#define REGISTER "v"
#elif defined(__AVX__)
#define BYTES 32
#define REGISTER "x"
#else
#define BYTES 16
#define REGISTER "x"
#endif
typedef float lanes __attribute__((vector_size(BYTES)));
typedef long long words __attribute__((vector_size(BYTES)));

struct job {
    pthread_barrier_t *begin;
    double (*work)(long rounds, long long *place, long bytes); /* how much it did */
    long rounds, bytes;
    double done, ended, *began;
    long long *place;
};

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + 1e-9 * t.tv_nsec;
}

static double fma_f32(long rounds, long long *place, long bytes) {
    lanes scale, shift;
    (void)bytes;
    for (int i = 0; i < BYTES / 4; i++) scale[i] = 0.999f, shift[i] = 1 + (float)*place; /* towards 1000: numbers near 0 would be slow */
#define START(n) lanes a##n = shift + n;
    CHAINS(START)
    for (long r = 0; r < rounds; r++) {
#define STEP(n) a##n = a##n * scale + shift; KEEP(a##n);
        CHAINS(STEP)
    }
#define SUM(n) *place += (long long)a##n[0];
    CHAINS(SUM)
#undef START
#undef STEP
    return 12.0 * (BYTES / 4) * 2 * rounds;
}

#ifdef __AVX512BF16__
static double dot_bf16(long rounds, long long *place, long bytes) {
    __m512bh a = (__m512bh)_mm512_set1_epi16(0x3f80), b = (__m512bh)_mm512_set1_epi16(0x3c00);
    (void)bytes;
#define START(n) __m512 a##n = _mm512_set1_ps(n);
    CHAINS(START)
    for (long r = 0; r < rounds; r++) {
#define STEP(n) a##n = _mm512_dpbf16_ps(a##n, a, b); KEEP(a##n);
        CHAINS(STEP)
    }
    CHAINS(SUM)
#undef START
#undef STEP
    return 12.0 * 32 * 2 * rounds;
}
#endif

#if defined(__AVX512VNNI__)
#define VECTOR __m512i
#define SET(value) _mm512_set1_epi32(value)
#define DOT _mm512_dpbusd_epi32
#elif defined(__AVXVNNI__)
#define VECTOR __m256i
#define SET(value) _mm256_set1_epi32(value)
#define DOT _mm256_dpbusd_avx_epi32
#endif
#ifdef DOT
static double dot_int8(long rounds, long long *place, long bytes) {
    VECTOR a = SET(0x01010101), b = SET(0x01010101);
    (void)bytes;
#define START(n) VECTOR a##n = SET(n);
    CHAINS(START)
    for (long r = 0; r < rounds; r++) {
#define STEP(n) a##n = DOT(a##n, a, b); KEEP(a##n);
        CHAINS(STEP)
    }
    CHAINS(SUM)
#undef START
#undef STEP
    return 2.0 * 12 * sizeof(VECTOR) * rounds;
}
#endif

#if defined(__AMX_TILE__) && defined(__AMX_BF16__) && defined(__AMX_INT8__)
/* Two by two tiles of sums, all eight tiles used. */
static void configure(void) {
    struct { unsigned char palette, row, reserved[14]; unsigned short width[16]; unsigned char rows[16]; } shape = {.palette = 1};
    for (int n = 0; n < 8; n++) shape.width[n] = 64, shape.rows[n] = 16;
    __asm__ volatile("ldtilecfg %0" ::"m"(shape)); /* the compiler's own function says that it reads 8 of these 64 bytes */
    _tile_zero(0); _tile_zero(1); _tile_zero(2); _tile_zero(3);
    _tile_zero(4); _tile_zero(5); _tile_zero(6); _tile_zero(7);
}
static double matrix_bf16(long rounds, long long *place, long bytes) {
    (void)bytes; (void)place;
    configure();
    for (long r = 0; r < rounds; r++) {
        _tile_dpbf16ps(0, 4, 6); _tile_dpbf16ps(1, 4, 7); _tile_dpbf16ps(2, 5, 6); _tile_dpbf16ps(3, 5, 7);
    }
    _tile_release();
    return 4.0 * 16 * 16 * 32 * 2 * rounds;
}
static double matrix_int8(long rounds, long long *place, long bytes) {
    (void)bytes; (void)place;
    configure();
    for (long r = 0; r < rounds; r++) {
        _tile_dpbusd(0, 4, 6); _tile_dpbusd(1, 4, 7); _tile_dpbusd(2, 5, 6); _tile_dpbusd(3, 5, 7);
    }
    _tile_release();
    return 4.0 * 16 * 16 * 64 * 2 * rounds;
}
static int matrix_is_granted(void) {
    return syscall(SYS_arch_prctl, 0x1023 /* ARCH_REQ_XCOMP_PERM */, 18 /* tile data */) == 0;
}
#endif

/* Each thread's memory is four quarters, which are walked side by side. */
static double read_four(long rounds, long long *place, long bytes) {
    const words *a = (const words *)place;
    long quarter = bytes / 4 / BYTES;
    words s0 = {0}, s1 = {0}, s2 = {0}, s3 = {0};
    for (long r = 0; r < rounds; r++)
        for (long i = 0; i < quarter; i++) {
            s0 += a[i], s1 += a[i + quarter], s2 += a[i + 2 * quarter], s3 += a[i + 3 * quarter];
            KEEP(s0);
        }
    place[0] = (s0 + s1 + s2 + s3)[0];
    return (double)quarter * 4 * BYTES * rounds;
}
/* The first half of each quarter goes into the second; bytes are those read and those written. */
static double copy_four(long rounds, long long *place, long bytes) {
    words *a = (words *)place;
    long quarter = bytes / 4 / BYTES, half = quarter / 2;
    for (long r = 0; r < rounds; r++)
        for (long i = 0; i < half; i++) {
            words v0 = a[i], v1 = a[i + quarter], v2 = a[i + 2 * quarter], v3 = a[i + 3 * quarter];
            KEEP(v0);
            a[i + half] = v0, a[i + quarter + half] = v1, a[i + 2 * quarter + half] = v2, a[i + 3 * quarter + half] = v3;
        }
    return (double)half * 8 * BYTES * rounds;
}

static void *run(void *given) {
    struct job *job = given;
    pthread_barrier_wait(job->begin);
    job->began[0] = now();
    job->done = job->work(job->rounds, job->place, job->bytes);
    job->ended = now();
    return NULL;
}

static double (*work_of(int kind))(long, long long *, long) {
    switch (kind) {
    case 0: return fma_f32;
#ifdef __AVX512BF16__
    case 1: return dot_bf16;
#endif
#ifdef DOT
    case 2: return dot_int8;
#endif
#if defined(__AMX_TILE__) && defined(__AMX_BF16__) && defined(__AMX_INT8__)
    case 3: return matrix_is_granted() ? matrix_bf16 : NULL;
    case 4: return matrix_is_granted() ? matrix_int8 : NULL;
#endif
    case 5: return read_four;
    case 6: return copy_four;
    default: return NULL;
    }
}

/* Work a second of one kind; `bytes` is each thread's memory. 0: this machine has no such instruction; negative: no memory or threads. */
double rate(int kind, int threads, long rounds, long bytes) {
    double (*work)(long, long long *, long) = work_of(kind);
    static struct job jobs[MOST_THREADS];
    static double began[MOST_THREADS];
    pthread_t made[MOST_THREADS];
    pthread_barrier_t begin;
    double done = 0, first = 1e300, last = 0;
    if (!work) return 0;
    if (threads < 1 || threads > MOST_THREADS) return -1;
    for (int n = 0; n < threads; n++) {
        if (!(jobs[n].place = aligned_alloc(64, bytes))) return -1;
        memset(jobs[n].place, 0, bytes);
    }
    pthread_barrier_init(&begin, NULL, threads);
    for (int n = 0; n < threads; n++) {
        jobs[n].begin = &begin, jobs[n].work = work, jobs[n].rounds = rounds, jobs[n].bytes = bytes, jobs[n].began = &began[n];
        if (n && pthread_create(&made[n], NULL, run, &jobs[n])) return -1;
    }
    run(&jobs[0]);
    for (int n = 1; n < threads; n++) pthread_join(made[n], NULL);
    for (int n = 0; n < threads; n++) {
        done += jobs[n].done;
        if (began[n] < first) first = began[n];
        if (jobs[n].ended > last) last = jobs[n].ended;
        free(jobs[n].place);
    }
    pthread_barrier_destroy(&begin);
    return done / (last - first);
}
