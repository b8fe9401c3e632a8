/* This machine: its kind, the features that every core of its CPU has, and what the system lets this process use of it. */
#include "internal.h"

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <unistd.h>

/* Requests of Linux on x86-64 (asm/prctl.h). */
#define REQUEST_PERMISSION 0x1023
#define TILE_DATA 18

bool ourcc_has_flag(const struct cpu *cpu, const char *flag) {
    size_t length = strlen(flag);
    for (const char *found = cpu->flags; length && (found = strstr(found, flag)); ++found)
        if (found[-1] == ' ' && found[length] == ' ') return true;
    return false;
}

/* The words of a line behind its colon, between spaces; null for a line of another key. */
static char *flags_of(struct task *task, struct memory *memory, char *line) {
    char *colon = strchr(line, ':');
    if (!colon) return NULL;
    char *end = colon;
    while (end > line && (end[-1] == ' ' || end[-1] == '\t')) --end;
    size_t length = (size_t)(end - line);
    if (!(length == 5 && strncmp(line, "flags", 5) == 0) && !(length == 8 && strncmp(line, "Features", 8) == 0)) return NULL;
    char *flags = ourcc_take(task, memory, strlen(colon) + 3, 1), *next = flags;
    *next++ = ' ';
    for (char *rest = colon + 1, *word, *kept; (word = strtok_r(rest, " \t\n", &kept)); rest = NULL) {
        next = stpcpy(next, word);
        *next++ = ' ';
    }
    return flags;
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
    char line[8192], before[8192] = "";
    if (uname(&names) != 0) ourcc_fail(task, OURCC_SYSTEM, "cannot tell what machine this is: %s", strerror(errno));
    snprintf(cpu->machine, sizeof cpu->machine, "%s", names.machine);
    FILE *file = fopen("/proc/cpuinfo", "re");
    if (!file) ourcc_fail(task, OURCC_SYSTEM, "cannot read the features of this cpu: %s", strerror(errno));
    cpu->flags = NULL;
    while (fgets(line, sizeof line, file)) {
        if (strcmp(line, before) == 0) continue; /* another core that is alike */
        char copy[sizeof line];
        strcpy(copy, line);
        char *flags = flags_of(task, memory, line);
        if (!flags) continue;
        strcpy(before, copy);
        if (cpu->flags)
            keep_common(cpu, flags);
        else
            cpu->flags = flags;
    }
    fclose(file);
    if (!cpu->flags) cpu->flags = ourcc_take_text(task, memory, "  ", 2);
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
