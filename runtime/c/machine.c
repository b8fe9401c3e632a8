/* This machine: its kind, the features that every core of its CPU has, and what the system lets this process use of it. */
#include "internal.h"

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <unistd.h>

/* Requests of Linux on x86-64 (asm/prctl.h). */
#define REQUEST_PERMISSION 0x1023
#define TILE_DATA 18
#define LONGEST 16384 /* a line of /proc/cpuinfo */

bool ourcc_has_flag(const struct cpu *cpu, const char *flag) {
    size_t length = strlen(flag);
    for (const char *found = cpu->flags; length && (found = strstr(found, flag)); ++found)
        if (found[-1] == ' ' && found[length] == ' ') return true;
    return false;
}

/* Whether a line lists features, whose words are then put `into` memory as long as the line, between spaces. */
static bool read_flags(char *line, char *into) {
    char *colon = strchr(line, ':');
    if (!colon) return false;
    char *end = colon;
    while (end > line && (end[-1] == ' ' || end[-1] == '\t')) --end;
    size_t length = (size_t)(end - line);
    if (!(length == 5 && strncmp(line, "flags", 5) == 0) && !(length == 8 && strncmp(line, "Features", 8) == 0)) return false;
    *into++ = ' ';
    for (char *rest = colon + 1, *word, *kept; (word = strtok_r(rest, " \t\n", &kept)); rest = NULL) {
        into = stpcpy(into, word);
        *into++ = ' ';
    }
    *into = 0;
    return true;
}

/* Drops the flags that another core lacks. */
static void keep_common(struct cpu *cpu, char *others) {
    struct cpu other = {.flags = others};
    char *next = cpu->flags + 1, *kept;
    char word[64], *rest = cpu->flags;
    for (char *found; (found = strtok_r(rest, " ", &kept)); rest = NULL) {
        size_t length = strlen(found);
        if (length >= sizeof word) continue;
        memcpy(word, found, length + 1);
        if (!ourcc_has_flag(&other, word)) continue;
        memmove(next, word, length);
        next += length;
        *next++ = ' ';
    }
    *cpu->flags = ' ';
    *next = 0;
}

void ourcc_look(struct task *task, struct memory *memory, struct cpu *cpu) {
    struct utsname names;
    char *line = ourcc_take(task, memory, LONGEST, 1), *before = ourcc_take(task, memory, LONGEST, 1);
    char *copy = ourcc_take(task, memory, LONGEST, 1), *flags = ourcc_take(task, memory, LONGEST, 1);
    bool is_first = true;
    cpu->flags = ourcc_take(task, memory, LONGEST, 1);
    if (uname(&names) != 0) ourcc_fail(task, OURCC_SYSTEM, "cannot tell what machine this is: %s", strerror(errno));
    snprintf(cpu->machine, sizeof cpu->machine, "%s", names.machine);
    FILE *file = fopen("/proc/cpuinfo", "re");
    if (!file) ourcc_fail(task, OURCC_SYSTEM, "cannot read the features of this cpu: %s", strerror(errno));
    /* Nothing fails while the file is open. */
    while (fgets(line, LONGEST, file)) {
        if (strcmp(line, before) == 0) continue; /* another core that is alike */
        strcpy(copy, line);
        if (!read_flags(line, is_first ? cpu->flags : flags)) continue;
        strcpy(before, copy);
        if (!is_first) keep_common(cpu, flags);
        is_first = false;
    }
    fclose(file);
}

bool ourcc_may_use_tiles(void) {
#if defined(__x86_64__)
    return syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
#else
    return false;
#endif
}

int ourcc_cpu_count(void) {
    /* A mask of a fixed size is refused by systems with more CPUs than that. */
    for (int room = 1024; room <= 1 << 20; room *= 2) {
        cpu_set_t *set = CPU_ALLOC((size_t)room);
        if (!set) return 1;
        int failed = sched_getaffinity(0, CPU_ALLOC_SIZE((size_t)room), set);
        int count = failed ? 0 : CPU_COUNT_S(CPU_ALLOC_SIZE((size_t)room), set);
        CPU_FREE(set);
        if (!failed) return count > 0 ? count : 1;
        if (errno != EINVAL) return 1;
    }
    return 1;
}
