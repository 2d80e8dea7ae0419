/* The script of fake_nvml.c, and what it lets befall a call. */
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

typedef unsigned int u32;
typedef unsigned long long u64;
typedef int status;

enum {
    SUCCESS = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7, TIMEOUT = 10,
    ARGUMENT_VERSION_MISMATCH = 25
};
enum { CARDS = 64, PARTS = 8, SLOTS = CARDS * (1 + PARTS), SCRIPT_BYTES = 65536, NO_INSTANCE = -1, XID_EVENT = 8 };

static char slots[SLOTS]; /* a handle is the address of its slot: first the cards, then the MIG instances of each */
static u64 watched[SLOTS];
static int users;
static u64 delivered;
static __thread char script[SCRIPT_BYTES];

/* ------------------------------------------------------------------ the script */

static void load(void) {
    const char *path = getenv("FAKE_NVML_SCRIPT");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    ssize_t size = 0, got;
    while (file >= 0 && size < SCRIPT_BYTES - 1 && (got = read(file, script + size, SCRIPT_BYTES - 1 - size)) > 0)
        size += got;
    if (file >= 0) close(file);
    script[size] = 0;
}

/* The value of a key in the loaded script, copied to `into`; 0 where it has none. */
static int find(const char *key, char *into, size_t room) {
    size_t length = strlen(key);
    for (const char *line = script; line && *line; line = strchr(line, '\n') ? strchr(line, '\n') + 1 : NULL) {
        if (strncmp(line, key, length) != 0 || line[length] != ' ') continue;
        const char *value = line + length + 1;
        size_t n = strcspn(value, "\n");
        if (n >= room) n = room - 1;
        memcpy(into, value, n);
        into[n] = 0;
        return 1;
    }
    return 0;
}

static int is_part(int slot) { return slot >= CARDS; }
static int card_of(int slot) { return is_part(slot) ? (slot - CARDS) / PARTS : slot; }
static int part_of(int slot) { return (slot - CARDS) % PARTS; }

static int text(int slot, const char *key, char *into, size_t room) {
    char full[96];
    if (is_part(slot)) {
        snprintf(full, sizeof full, "%dm%d.%s", card_of(slot), part_of(slot), key);
        return find(full, into, room);
    }
    snprintf(full, sizeof full, "%d.%s", slot, key);
    if (find(full, into, room)) return 1;
    snprintf(full, sizeof full, "*.%s", key);
    return find(full, into, room);
}

static u64 number(int slot, const char *key, u64 otherwise) {
    char value[64];
    return text(slot, key, value, sizeof value) ? strtoull(value, NULL, 0) : otherwise;
}

static u64 global(const char *key, u64 otherwise) {
    char value[64];
    return find(key, value, sizeof value) ? strtoull(value, NULL, 0) : otherwise;
}

static void trace(const char *word, const char *call, int slot) {
    const char *path = getenv("FAKE_NVML_TRACE");
    char line[128];
    if (!path) return;
    int file = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644);
    int size = snprintf(line, sizeof line, "%d %s %s %d\n", (int)getpid(), word, call, slot);
    if (file >= 0) {
        if (write(file, line, size) != size) abort();
        close(file);
    }
}

/* ------------------------------------------------------------------ what can befall a call */

static double now(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return at.tv_sec + at.tv_nsec / 1e9;
}

static void pause_ms(int ms) {
    struct timespec span = {ms / 1000, (ms % 1000) * 1000000L};
    nanosleep(&span, NULL);
}

static void block(int slot, const char *key) {
    char value[64];
    double began = now();
    while (text(slot, key, value, sizeof value)) {
        if (strcmp(value, "forever") != 0 && now() - began >= strtod(value, NULL)) return;
        pause_ms(10);
        load();
    }
}

/* What NVML tells of a MIG instance; all else is told of its card alone. */
static int speaks(int slot, const char *call) {
    static const char *const known[] = {"uuid", "name", "memory", "memory_v1", "processes", "instance"};
    if (!is_part(slot)) return 1;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strcmp(call, known[i]) == 0) return 1;
    return 0;
}

/* Hang, crash or fail as the script has it, for all calls of a slot and for this one; what befalls a card befalls its instances. */
static status befall(int slot, const char *call) {
    char key[64];
    if (is_part(slot)) {
        status result = befall(card_of(slot), call);
        if (result != SUCCESS) return result;
        if (!speaks(slot, call)) return NOT_SUPPORTED;
    }
    block(slot, "hang");
    snprintf(key, sizeof key, "%s.hang", call);
    block(slot, key);
    snprintf(key, sizeof key, "%s.crash", call);
    if (number(slot, "crash", 0) || number(slot, key, 0)) abort();
    snprintf(key, sizeof key, "%s.error", call);
    return (status)number(slot, key, number(slot, "error", SUCCESS));
}

static int slot_of(const void *device) {
    long slot = (const char *)device - slots;
    return slot >= 0 && slot < SLOTS ? (int)slot : -1;
}

static status guard(void *device, const char *call) {
    int slot = slot_of(device);
    load();
    if (!users) return UNINITIALIZED;
    if (slot < 0) return INVALID_ARGUMENT;
    trace("begin", call, slot);
    status result = befall(slot, call);
    trace("end", call, slot);
    return result;
}

#define GUARD(call)                        \
    int slot = slot_of(device);            \
    status result = guard(device, call);   \
    if (result != SUCCESS) return result
