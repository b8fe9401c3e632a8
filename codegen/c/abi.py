"""What generated C and the runtime agree on: the header of every C file, and the thread pool that each engine carries.

A kernel is a constant `{ body, enter, leave }`. Its body runs points and gives 0, or a positive number that says why it
did not; each thread calls `enter` before it and `leave` after it, where they are not null, and where `enter` gives another
number than 0 neither is called. `ourcc_launch` gives 0, or minus the first such number; what other threads still have to
do of the launch is left out. Pairs of `enter` and `leave` nest if a body launches kernels itself.

`ourcc_parallel(threads, points, body, context)` calls `body(context, first, last)` until 0..points is covered, on at
most `threads` threads. The runtime hands the first loaded engine's `ourcc_parallel` to all later ones through
`ourcc_use_parallel`, so that a process has one pool; a host's own pool can be put there as well.
"""

from __future__ import annotations

ABI_VERSION = 2


KERNEL = "kernel"
"""What the file of one kernel calls it. Its name in an engine stands in the file's: equal kernels are equal files."""


def descriptor(kernel: str) -> str:
    """The C name of the constant that describes a kernel, whose body has the kernel's own name."""
    return f"{kernel}_descriptor"


def declaration(kernel: str) -> str:
    """A C line that lets another file launch a kernel."""
    return f"extern const ourcc_kernel {descriptor(kernel)};"


HEADER = """#ifndef OURCC_ABI_H
#define OURCC_ABI_H
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>

#define OURCC_EXPORT __attribute__((visibility("default")))

typedef struct ourcc_pool ourcc_pool;
typedef void (*ourcc_body)(void *context, int64_t first, int64_t last);
typedef void (*ourcc_parallel_function)(int threads, int64_t points, ourcc_body body, void *context);
typedef struct {
    int32_t (*body)(void *const *operands, const int64_t *symbols, int64_t first, int64_t last);
    int32_t (*enter)(void);
    void (*leave)(void);
} ourcc_kernel;

OURCC_EXPORT int32_t ourcc_abi(void);
OURCC_EXPORT void ourcc_parallel(int threads, int64_t points, ourcc_body body, void *context);
OURCC_EXPORT void ourcc_use_parallel(ourcc_parallel_function function);

/* The next `count` launches of this thread are timed: nanoseconds, from `first` on. */
OURCC_EXPORT void ourcc_time(int64_t *first, int64_t count);

/* Runs all points of a kernel's grid on the process's pool: 0, or minus the number that the first thread to fail gave. */
int32_t ourcc_launch(int threads, int64_t points, const ourcc_kernel *kernel, void *const *operands, const int64_t *symbols);

/* Memory of a kernel for as long as it runs: null where there is none. Threads of callers may have too small a stack for it. */
static inline uint8_t *ourcc_take(size_t bytes) { return aligned_alloc(64, bytes); }
static inline void ourcc_give_back(uint8_t *const *memory) { free(*memory); }

/* A part of such memory: as of a block of malloc, compilers are told that no other pointer leads there. */
static __attribute__((malloc, noinline, noipa, assume_aligned(64))) void *ourcc_part(uint8_t *memory, size_t at) { return memory + at; }

/* In a body that waits for other points: not 0 once the launch has failed, and nobody may signal any more. */
int32_t ourcc_ended(void);
#endif
"""

POOL = """
#define _GNU_SOURCE
#include "ourcc.h"
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define OURCC_WORKERS 256
#define OURCC_SPIN 4000
#define OURCC_STACK (8 << 20)
/* The ticket holds the job's generation above the next chunk; CLOSED means that nothing is left to claim. */
#define OURCC_CLOSED ((UINT64_C(1) << 40) - 1)

struct ourcc_pool {
    pthread_mutex_t lock;
    pthread_cond_t wake, finish;
    pid_t owner;
    int workers, parked, caller_sleeps;
    atomic_int busy, limit;
    atomic_uint_least64_t ticket;
    _Atomic int64_t finished, points, chunk;
    _Atomic(ourcc_body) body;
    _Atomic(void *) context;
};

static ourcc_pool pool;
static pthread_mutex_t pool_setup = PTHREAD_MUTEX_INITIALIZER;

int32_t ourcc_abi(void) { return ABI_VERSION; }

static inline void ourcc_pause(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

/* Claims chunks until none is left. What a job says is read after a claim: until that chunk is done it cannot change. */
static void ourcc_work(void) {
    for (;;) {
        uint64_t ticket = atomic_load(&pool.ticket);
        int64_t next = (int64_t)(ticket & OURCC_CLOSED);
        int64_t points = atomic_load(&pool.points), chunk = atomic_load(&pool.chunk);
        if (next == (int64_t)OURCC_CLOSED || next * chunk >= points) return;
        if (!atomic_compare_exchange_weak(&pool.ticket, &ticket, ticket + 1)) continue;
        int64_t first = next * chunk, last = first + chunk < points ? first + chunk : points;
        atomic_load(&pool.body)(atomic_load(&pool.context), first, last);
        if (atomic_fetch_add(&pool.finished, last - first) + (last - first) == points) {
            pthread_mutex_lock(&pool.lock);
            if (pool.caller_sleeps) pthread_cond_signal(&pool.finish);
            pthread_mutex_unlock(&pool.lock);
        }
    }
}

static void *ourcc_worker(void *argument) {
    int index = (int)(intptr_t)argument;
    uint64_t seen = 0;
    for (;;) {
        for (int spin = 0; spin < OURCC_SPIN && atomic_load(&pool.ticket) >> 40 == seen; ++spin) ourcc_pause();
        if (atomic_load(&pool.ticket) >> 40 == seen) {
            pthread_mutex_lock(&pool.lock);
            ++pool.parked;
            while (atomic_load(&pool.ticket) >> 40 == seen) pthread_cond_wait(&pool.wake, &pool.lock);
            --pool.parked;
            pthread_mutex_unlock(&pool.lock);
        }
        seen = atomic_load(&pool.ticket) >> 40;
        if (index < atomic_load(&pool.limit)) ourcc_work();
    }
    return 0;
}

/* Workers take no signals: handlers of the host run on its own threads. */
static void ourcc_grow(int wanted) {
    sigset_t all, before;
    pthread_attr_t attributes;
    pthread_t thread;
    if (wanted > OURCC_WORKERS) wanted = OURCC_WORKERS;
    if (pool.workers >= wanted) return;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, OURCC_STACK);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    while (pool.workers < wanted && pthread_create(&thread, &attributes, ourcc_worker, (void *)(intptr_t)pool.workers) == 0)
        ++pool.workers;
    pthread_attr_destroy(&attributes);
    pthread_sigmask(SIG_SETMASK, &before, 0);
}

/* After a fork the child has no workers, and locks may be held by threads that do not exist: all is made anew. */
static void ourcc_child(void) {
    memset(&pool, 0, sizeof pool);
    pthread_mutex_init(&pool_setup, 0);
}

static void ourcc_start(void) {
    static int watched;
    pthread_mutex_lock(&pool_setup);
    if (pool.owner == 0) {
        pthread_mutex_init(&pool.lock, 0);
        pthread_cond_init(&pool.wake, 0);
        pthread_cond_init(&pool.finish, 0);
        atomic_store(&pool.ticket, OURCC_CLOSED);
        if (!watched) pthread_atfork(0, 0, ourcc_child);
        watched = 1;
        pool.owner = getpid();
    }
    pthread_mutex_unlock(&pool_setup);
}

void ourcc_parallel(int threads, int64_t points, ourcc_body body, void *context) {
    int expected = 0;
    if (points <= 0) return;
    if (threads > points) threads = (int)points;
    if (threads > 1) ourcc_start();
    /* One job at a time; a second caller, or a body that calls again, does its own points itself. */
    if (threads <= 1 || !atomic_compare_exchange_strong(&pool.busy, &expected, 1)) {
        body(context, 0, points);
        return;
    }
    ourcc_grow(threads - 1);
    int64_t chunk = points / ((int64_t)threads * 16);
    atomic_store(&pool.limit, threads - 1);
    atomic_store(&pool.points, points);
    atomic_store(&pool.chunk, chunk > 0 ? chunk : 1);
    atomic_store(&pool.body, body);
    atomic_store(&pool.context, context);
    atomic_store(&pool.finished, 0);
    uint64_t generation = (atomic_load(&pool.ticket) >> 40) + 1;
    pthread_mutex_lock(&pool.lock);
    atomic_store(&pool.ticket, generation << 40);
    if (pool.parked) pthread_cond_broadcast(&pool.wake);
    pthread_mutex_unlock(&pool.lock);
    ourcc_work();
    for (int spin = 0; spin < OURCC_SPIN && atomic_load(&pool.finished) < points; ++spin) ourcc_pause();
    if (atomic_load(&pool.finished) < points) {
        pthread_mutex_lock(&pool.lock);
        pool.caller_sleeps = 1;
        while (atomic_load(&pool.finished) < points) pthread_cond_wait(&pool.finish, &pool.lock);
        pool.caller_sleeps = 0;
        pthread_mutex_unlock(&pool.lock);
    }
    atomic_fetch_or(&pool.ticket, OURCC_CLOSED);
    atomic_store(&pool.busy, 0);
}

static _Atomic(ourcc_parallel_function) ourcc_process_parallel = ourcc_parallel;

void ourcc_use_parallel(ourcc_parallel_function function) { atomic_store(&ourcc_process_parallel, function); }

typedef struct {
    const ourcc_kernel *kernel;
    void *const *operands;
    const int64_t *symbols;
    _Atomic int32_t status;
} ourcc_call;

static _Thread_local ourcc_call *ourcc_running;

int32_t ourcc_ended(void) { return ourcc_running ? atomic_load_explicit(&ourcc_running->status, memory_order_relaxed) : 0; }

static int32_t ourcc_points(const ourcc_kernel *kernel, void *const *operands, const int64_t *symbols, int64_t first, int64_t last) {
    int32_t status = kernel->enter ? kernel->enter() : 0;
    if (status != 0) return status;
    status = kernel->body(operands, symbols, first, last);
    if (kernel->leave) kernel->leave();
    return status;
}

static void ourcc_call_points(void *context, int64_t first, int64_t last) {
    ourcc_call *call = context, *outer = ourcc_running;
    int32_t none = 0;
    if (atomic_load_explicit(&call->status, memory_order_relaxed) != 0) return;
    ourcc_running = call;
    int32_t status = ourcc_points(call->kernel, call->operands, call->symbols, first, last);
    ourcc_running = outer;
    if (status != 0) atomic_compare_exchange_strong(&call->status, &none, status);
}

static _Thread_local int64_t *ourcc_next_time, *ourcc_last_time;

void ourcc_time(int64_t *first, int64_t count) {
    ourcc_next_time = first;
    ourcc_last_time = first + count;
}

static int64_t ourcc_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static int32_t ourcc_run(int threads, int64_t points, const ourcc_kernel *kernel, void *const *operands, const int64_t *symbols) {
    int32_t status = 0;
    if (threads <= 1 || points <= 1) {
        if (points > 0) status = ourcc_points(kernel, operands, symbols, 0, points);
    } else {
        ourcc_call call = {kernel, operands, symbols, 0};
        atomic_load(&ourcc_process_parallel)(threads, points, ourcc_call_points, &call);
        status = atomic_load_explicit(&call.status, memory_order_relaxed);
    }
    return status > 0 ? -status : status;
}

int32_t ourcc_launch(int threads, int64_t points, const ourcc_kernel *kernel, void *const *operands, const int64_t *symbols) {
    if (ourcc_next_time == ourcc_last_time) return ourcc_run(threads, points, kernel, operands, symbols);
    int64_t *time = ourcc_next_time++, start = ourcc_now();
    int32_t status = ourcc_run(threads, points, kernel, operands, symbols);
    *time = ourcc_now() - start;
    return status;
}
""".replace("ABI_VERSION", str(ABI_VERSION))


def support_files() -> dict[str, str]:
    """The files that every engine's shared object is built with, by name."""
    return {"ourcc.h": HEADER, "ourcc_pool.c": POOL.lstrip()}
