/* Native code: shared objects opened from checked bytes in a sealed anonymous file, and the one pool of threads they share. */
#include "internal.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define ABI 2

static const char *const routines[] = {"sample_token", "search_sorted", "sort", "top_k"};

typedef void (*parallel_function)(int threads, int64_t points, void (*body)(void *, int64_t, int64_t), void *context);

/* The pool of the library that was loaded first: its workers live in that library's code, which stays. */
static pthread_mutex_t pool_lock = PTHREAD_MUTEX_INITIALIZER;
static parallel_function pool;

void *ourcc_find_function(struct task *task, const struct code *code, const char *name) {
    void *found = dlsym(code->library, name);
    if (!found) ourcc_fail(task, OURCC_DAMAGED, "native code of the engine has no function %s", name);
    return found;
}

static void check_abi(struct task *task, const struct code *code, const char *name) {
    int32_t (*version)(void);
    *(void **)&version = ourcc_find_function(task, code, "ourcc_abi");
    if (version() != ABI)
        ourcc_fail(task, OURCC_UNSUPPORTED, "native code %s has interface version %d, expected %d", name, (int)version(), ABI);
}

/* What is for other plans is never called: code takes sizes and places from its plan. */
static void check_plans(struct task *task, const struct code *code, const char *name, const char plans[65]) {
    const char *known = dlsym(code->library, "ourcc_plans");
    if (!known || memcmp(known, plans, 64) != 0)
        ourcc_fail(task, OURCC_DAMAGED, "native code %s was made for %s", name,
                   known ? "other plans than the engine holds" : "plans that it does not name");
}

static void share_pool(struct task *task, struct code *code) {
    void (*use_parallel)(parallel_function);
    parallel_function own;
    *(void **)&use_parallel = ourcc_find_function(task, code, "ourcc_use_parallel");
    *(void **)&own = ourcc_find_function(task, code, "ourcc_parallel");
    pthread_mutex_lock(&pool_lock);
    code->is_kept = !pool;
    if (!pool) pool = own;
    parallel_function shared = pool;
    pthread_mutex_unlock(&pool_lock);
    use_parallel(shared);
}

static void open_library(struct task *task, struct code *code, const char *name, const char *data, size_t size) {
    char path[64];
    code->descriptor = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (code->descriptor < 0) ourcc_fail(task, OURCC_SYSTEM, "cannot load native code %s: no anonymous file: %s", name, strerror(errno));
    while (size) {
        ssize_t count = write(code->descriptor, data, size);
        if (count < 0 && errno == EINTR) continue;
        if (count <= 0) ourcc_fail(task, OURCC_SYSTEM, "cannot load native code %s: %s", name, strerror(errno));
        data += count;
        size -= (size_t)count;
    }
    fcntl(code->descriptor, F_ADD_SEALS, F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE);
    /* The loader takes equal paths for equal libraries: the descriptor stays open as long as the library, so no other has its number. */
    snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)getpid(), code->descriptor);
    code->library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!code->library) ourcc_fail(task, OURCC_SYSTEM, "cannot load native code %s: %.300s", name, dlerror());
}

void ourcc_load_code(struct task *task, struct code *code, const char *name, const char *data, size_t size, const char plans[65]) {
    open_library(task, code, name, data, size);
    check_plans(task, code, name, plans);
    check_abi(task, code, name);
    share_pool(task, code);
}

bool ourcc_is_launched(const struct document *document, const char *kind, const struct json *step) {
    if (strcmp(kind, "host") != 0) return strcmp(kind, "launch") == 0;
    const char *routine = ourcc_need(document, step, "routine", JSON_TEXT)->text;
    for (size_t n = 0; n < sizeof routines / sizeof *routines; ++n)
        if (strcmp(routine, routines[n]) == 0) return true;
    return false;
}

void ourcc_free_code(struct code *code) {
    if (code->is_kept) return;
    if (code->library) dlclose(code->library);
    if (code->descriptor >= 0) close(code->descriptor);
    *code = (struct code){.descriptor = -1};
}
