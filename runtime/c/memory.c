/* Memory: chunks that are freed together, aligned blocks that are refused before the machine runs out, and names with numbers. */
#include "internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHUNK ((size_t)1 << 16)
#define UNCHECKED (UINT64_C(1) << 30) /* bytes up to which nobody asks what is available */

struct chunk {
    struct chunk *next;
    _Alignas(16) char data[];
};

static size_t rounded(size_t size) { return (size + 15) & ~(size_t)15; }

void *ourcc_take(struct task *task, struct memory *memory, size_t count, size_t size) {
    size_t total;
    if (__builtin_mul_overflow(count, size, &total) || total > (size_t)OURCC_LARGEST)
        ourcc_fail(task, OURCC_MEMORY, "out of memory: %zu values of %zu bytes are needed", count, size);
    total = rounded(total);
    if (total > memory->left) {
        size_t room = total > CHUNK / 4 ? total : CHUNK;
        struct chunk *chunk = calloc(1, sizeof *chunk + room);
        if (!chunk) ourcc_fail(task, OURCC_MEMORY, "out of memory: %zu bytes are needed", room);
        chunk->next = memory->chunks;
        memory->chunks = chunk;
        if (room == total) return chunk->data; /* the chunk before it may have room left */
        memory->next = chunk->data;
        memory->left = room;
    }
    char *taken = memory->next;
    memory->next += total;
    memory->left -= total;
    return taken;
}

char *ourcc_take_text(struct task *task, struct memory *memory, const char *text, size_t length) {
    char *copy = ourcc_take(task, memory, length + 1, 1);
    if (length) memcpy(copy, text, length);
    return copy;
}

void ourcc_free_memory(struct memory *memory) {
    for (struct chunk *chunk = memory->chunks, *next; chunk; chunk = next) {
        next = chunk->next;
        free(chunk);
    }
    *memory = (struct memory){0};
}

/* The number behind a word in a small file of the system; UINT64_MAX if it is not there. */
static uint64_t system_number(const char *path, const char *word) {
    char line[256];
    uint64_t found = UINT64_MAX;
    FILE *file = fopen(path, "re");
    if (!file) return found;
    while (found == UINT64_MAX && fgets(line, sizeof line, file)) {
        if (strncmp(line, word, strlen(word)) != 0) continue;
        const char *next = line + strlen(word) + strspn(line + strlen(word), " ");
        /* So many digits fit; a group without a limit says "max". */
        for (int digits = 0; *next >= '0' && *next <= '9' && digits < 18; ++digits, ++next)
            found = (digits ? found * 10 : 0) + (uint64_t)(*next - '0');
    }
    fclose(file);
    return found;
}

/* Bytes that can still be had: of the machine, or of this process's control group if that is less. */
static uint64_t available(void) {
    uint64_t kilobytes = system_number("/proc/meminfo", "MemAvailable:");
    uint64_t most = system_number("/sys/fs/cgroup/memory.max", ""), current = system_number("/sys/fs/cgroup/memory.current", "");
    uint64_t found = kilobytes == UINT64_MAX ? UINT64_MAX : kilobytes * 1024;
    if (most != UINT64_MAX && current != UINT64_MAX) {
        uint64_t left = most > current ? most - current : 0;
        found = left < found ? left : found;
    }
    return found;
}

void ourcc_reserve(struct task *task, struct block *block, uint64_t size, const char *what) {
    if (block->data && size <= block->size) return;
    ourcc_free_block(block);
    /* Linux promises memory that it does not have and kills the process that touches it. */
    if (size > (uint64_t)OURCC_LARGEST || (size > UNCHECKED && size > available()))
        ourcc_fail(task, OURCC_MEMORY, "out of memory: %s needs %llu bytes", what, (unsigned long long)size);
    block->base = calloc(1, (size_t)size + OURCC_ALIGNMENT);
    if (!block->base) ourcc_fail(task, OURCC_MEMORY, "out of memory: %s needs %llu bytes", what, (unsigned long long)size);
    block->data = (char *)block->base + (-(uintptr_t)block->base & (OURCC_ALIGNMENT - 1));
    block->size = (size_t)size;
}

void ourcc_free_block(struct block *block) {
    free(block->base);
    *block = (struct block){0};
}

struct name {
    const char *text;
    size_t number;
};

static size_t hash(const char *text) {
    uint64_t value = UINT64_C(14695981039346656037); /* FNV-1a */
    for (; *text; ++text) value = (value ^ (unsigned char)*text) * UINT64_C(1099511628211);
    return (size_t)(value ^ value >> 32);
}

/* The slot of a name, or the empty one where it would stand. */
static struct name *slot_of(const struct names *names, const char *text) {
    size_t place = hash(text) & (names->room - 1);
    while (names->slots[place].text && strcmp(names->slots[place].text, text) != 0) place = (place + 1) & (names->room - 1);
    return &names->slots[place];
}

bool ourcc_name(struct task *task, struct memory *memory, struct names *names, const char *text, size_t number) {
    if (names->count * 2 >= names->room) {
        struct names wider = {NULL, names->room ? names->room * 2 : 16, names->count};
        wider.slots = ourcc_take(task, memory, wider.room, sizeof *wider.slots);
        for (size_t n = 0; n < names->room; ++n)
            if (names->slots[n].text) *slot_of(&wider, names->slots[n].text) = names->slots[n];
        *names = wider;
    }
    struct name *slot = slot_of(names, text);
    if (slot->text) return false;
    *slot = (struct name){text, number};
    ++names->count;
    return true;
}

bool ourcc_find(const struct names *names, const char *text, size_t *number) {
    if (!names->room) return false;
    const struct name *slot = slot_of(names, text);
    if (!slot->text) return false;
    *number = slot->number;
    return true;
}
