/* A stand-in for the NVIDIA driver's library, for tests. Written from the public ABI; it holds no NVIDIA code.
 *
 * What it answers stands in a script, a text file named by FAKE_NVML_SCRIPT, which is read anew at every call, so that a test can
 * change the weather while a program runs. One "KEY VALUE" a line; keys of a card begin with its slot ("3.util 100") or with "*"
 * for all cards; a card's own line wins. tests/gpu/fake.py writes the script and lists the keys.
 *
 * Every guarded call of a card can be told to fail (ERROR), to block (HANG) or to abort the process (CRASH), all calls of the card
 * or one: "3.error 15", "3.power.error 3", "3.util.hang forever". A call that blocks looks at the script now and then and
 * goes on once its line has gone. With FAKE_NVML_TRACE, begin and end of every guarded call are appended to that file.
 */
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
    SUCCESS = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, INSUFFICIENT_SIZE = 7, TIMEOUT = 10,
    ARGUMENT_VERSION_MISMATCH = 25
};
enum { SLOTS = 64, SCRIPT_BYTES = 65536, NO_INSTANCE = -1, XID_EVENT = 8 };

static char slots[SLOTS]; /* a handle is the address of its slot */
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

static int text(int slot, const char *key, char *into, size_t room) {
    char full[96];
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

/* Hang, crash or fail as the script has it, for all calls of a slot and for this one. */
static status befall(int slot, const char *call) {
    char key[64];
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

/* ------------------------------------------------------------------ life cycle and identity */

status nvmlInitWithFlags(u32 flags) {
    (void)flags;
    load();
    trace("begin", "init", -1);
    block(-1, "init.hang");
    status result = (status)global("init.error", SUCCESS);
    if (result == SUCCESS) users++;
    trace("end", "init", -1);
    return result;
}

status nvmlShutdown(void) {
    trace("begin", "shutdown", -1);
    if (!users) return UNINITIALIZED;
    users--;
    return SUCCESS;
}

const char *nvmlErrorString(status code) {
    static __thread char words[48];
    snprintf(words, sizeof words, "stand-in error %d", code);
    return words;
}

static status copy(char *into, u32 room, const char *from) {
    if (strlen(from) + 1 > room) return INSUFFICIENT_SIZE;
    strcpy(into, from);
    return SUCCESS;
}

static status copy_text(int slot, const char *key, const char *otherwise, char *into, u32 room) {
    char value[128];
    return copy(into, room, text(slot, key, value, sizeof value) ? value : otherwise);
}

status nvmlSystemGetDriverVersion(char *into, u32 room) {
    char value[80];
    load();
    return copy(into, room, find("driver_version", value, sizeof value) ? value : "570.86.10");
}

static int present(int slot) { return slot < (int)global("count", 8) && slot < SLOTS && !number(slot, "absent", 0); }

status nvmlDeviceGetCount_v2(u32 *count) {
    load();
    if (!users) return UNINITIALIZED;
    *count = 0;
    for (int slot = 0; slot < SLOTS; slot++) *count += present(slot);
    return SUCCESS;
}

status nvmlDeviceGetHandleByIndex_v2(u32 index, void **device) {
    load();
    if (!users) return UNINITIALIZED;
    for (int slot = 0; slot < SLOTS; slot++) {
        if (!present(slot) || index--) continue;
        *device = &slots[slot];
        return (status)number(slot, "handle.error", SUCCESS);
    }
    return INVALID_ARGUMENT;
}

status nvmlDeviceGetUUID(void *device, char *into, u32 room) {
    char otherwise[64];
    GUARD("uuid");
    snprintf(otherwise, sizeof otherwise, "GPU-%08x-fa4e-4000-8000-%012x", slot, slot);
    return copy_text(slot, "uuid", otherwise, into, room);
}

status nvmlDeviceGetName(void *device, char *into, u32 room) {
    GUARD("name");
    return copy_text(slot, "name", "NVIDIA A100-SXM4-80GB", into, room);
}

status nvmlDeviceGetSerial(void *device, char *into, u32 room) {
    char otherwise[32];
    GUARD("serial");
    snprintf(otherwise, sizeof otherwise, "16500000%05d", slot);
    return copy_text(slot, "serial", otherwise, into, room);
}

typedef struct {
    char legacy[16];
    u32 domain, bus, device, id, subsystem;
    char full[32];
} pci;

status nvmlDeviceGetPciInfo_v3(void *device, pci *info) {
    GUARD("pci");
    memset(info, 0, sizeof *info);
    info->bus = 0x10 + slot;
    snprintf(info->legacy, sizeof info->legacy, "0000:%02X:00.0", info->bus & 0xff);
    snprintf(info->full, sizeof info->full, "00000000:%02X:00.0", info->bus & 0xff);
    return SUCCESS;
}

/* ------------------------------------------------------------------ readings */

status nvmlDeviceGetUtilizationRates(void *device, u32 rates[2]) {
    GUARD("util");
    rates[0] = (u32)number(slot, "util", 0);
    rates[1] = (u32)number(slot, "memutil", 0);
    return SUCCESS;
}

#define TOTAL (80ULL << 30)
#define RESERVED (600ULL << 20)

status nvmlDeviceGetMemoryInfo(void *device, u64 info[3]) {
    GUARD("memory_v1");
    info[0] = number(slot, "total", TOTAL);
    info[2] = number(slot, "used", 0) + number(slot, "reserved", RESERVED);
    info[1] = info[0] - info[2];
    return SUCCESS;
}

typedef struct {
    u32 version;
    u64 total, reserved, free, used;
} memory_v2;

status nvmlDeviceGetMemoryInfo_v2(void *device, memory_v2 *info) {
    GUARD("memory");
    if (info->version != (sizeof *info | 2 << 24)) return ARGUMENT_VERSION_MISMATCH;
    info->total = number(slot, "total", TOTAL);
    info->reserved = number(slot, "reserved", RESERVED);
    info->used = number(slot, "used", 0);
    info->free = info->total - info->reserved - info->used;
    return SUCCESS;
}

#define PLAIN(function, call, type, key, otherwise)   \
    status function(void *device, type *value) {      \
        GUARD(call);                                  \
        *value = (type)number(slot, key, otherwise);  \
        return SUCCESS;                               \
    }

PLAIN(nvmlDeviceGetPowerUsage, "power", u32, "power_mw", 62000)
PLAIN(nvmlDeviceGetEnforcedPowerLimit, "power_limit", u32, "power_limit_mw", 400000)
PLAIN(nvmlDeviceGetTotalEnergyConsumption, "energy", u64, "energy_mj", 0)
PLAIN(nvmlDeviceGetCurrentClocksEventReasons, "reasons", u64, "reasons", 0)
PLAIN(nvmlDeviceGetCurrentClocksThrottleReasons, "old_reasons", u64, "reasons", 0)

status nvmlDeviceGetTemperature(void *device, u32 sensor, u32 *celsius) {
    GUARD("temperature");
    if (sensor != 0) return INVALID_ARGUMENT;
    *celsius = (u32)number(slot, "temperature", 34);
    return SUCCESS;
}

status nvmlDeviceGetTemperatureV(void *device, u32 reading[3]) {
    GUARD("temperature_v");
    reading[2] = (u32)number(slot, "temperature", 34);
    return SUCCESS;
}

status nvmlDeviceGetTemperatureThreshold(void *device, u32 which, u32 *celsius) {
    GUARD("threshold");
    if (which != 1) return NOT_SUPPORTED;
    *celsius = (u32)number(slot, "slowdown", 89);
    return SUCCESS;
}

status nvmlDeviceGetClockInfo(void *device, u32 which, u32 *mhz) {
    GUARD("clock");
    *mhz = which == 2 ? (u32)number(slot, "memory_mhz", 1593) : (u32)number(slot, "sm_mhz", 1410);
    return SUCCESS;
}

status nvmlDeviceGetTotalEccErrors(void *device, u32 uncorrected, u32 aggregate, u64 *count) {
    char key[48];
    GUARD("ecc");
    snprintf(key, sizeof key, "ecc_%s_%s", uncorrected ? "uncorrected" : "corrected", aggregate ? "aggregate" : "volatile");
    *count = number(slot, key, 0);
    return SUCCESS;
}

typedef struct {
    u32 field, scope;
    long long stamp, latency;
    u32 type;
    status result;
    union {
        double real;
        u32 small;
        u64 large;
    } value;
} field_value;

status nvmlDeviceGetFieldValues(void *device, int count, field_value *values) {
    enum { MEMORY_TEMPERATURE = 82, AS_U32 = 1 };
    GUARD("fields");
    for (int i = 0; i < count; i++) {
        values[i].result = values[i].field == MEMORY_TEMPERATURE ? (status)number(slot, "memory_temperature.error", SUCCESS)
                                                                  : NOT_SUPPORTED;
        values[i].type = AS_U32;
        values[i].value.small = (u32)number(slot, "memory_temperature", 41);
    }
    return SUCCESS;
}

typedef struct {
    u32 pid;
    u64 used;
    u32 gpu_instance, compute_instance;
} process;

/* "PID:BYTES,PID:BYTES"; bytes of -1 stand for "not available". */
status nvmlDeviceGetComputeRunningProcesses_v3(void *device, u32 *count, process *list) {
    char value[1024] = "";
    u32 room = *count;
    GUARD("processes");
    text(slot, "processes", value, sizeof value);
    *count = 0;
    for (char *rest = value, *item; (item = strsep(&rest, ",")) != NULL;) {
        u32 pid;
        long long used;
        if (sscanf(item, "%u:%lld", &pid, &used) != 2) continue;
        if (list && *count < room) list[*count] = (process){pid, (u64)used, NO_INSTANCE, NO_INSTANCE};
        ++*count;
    }
    return *count > room || (*count && !list) ? INSUFFICIENT_SIZE : SUCCESS;
}

/* ------------------------------------------------------------------ events: "event.N SLOT XID", N counting from 1 */

static int event(u64 serial, int *slot, u64 *xid) {
    char key[32], value[64];
    snprintf(key, sizeof key, "event.%llu", serial);
    return find(key, value, sizeof value) && sscanf(value, "%d %llu", slot, xid) == 2;
}

status nvmlEventSetCreate(void **set) {
    int slot;
    u64 xid;
    load();
    if (!users) return UNINITIALIZED;
    *set = &delivered;
    while (event(delivered + 1, &slot, &xid)) delivered++; /* what happened before is not told */
    return SUCCESS;
}

status nvmlEventSetFree(void *set) { return set == &delivered ? SUCCESS : INVALID_ARGUMENT; }

PLAIN(nvmlDeviceGetSupportedEventTypes, "event_types", u64, "event_types", 0x1 | 0x2 | XID_EVENT)

status nvmlDeviceRegisterEvents(void *device, u64 types, void *set) {
    GUARD("register");
    if (set != &delivered) return INVALID_ARGUMENT;
    if (types & ~number(slot, "event_types", 0x1 | 0x2 | XID_EVENT)) return NOT_SUPPORTED;
    watched[slot] |= types;
    return SUCCESS;
}

typedef struct {
    void *device;
    u64 type, data;
    u32 gpu_instance, compute_instance;
} event_data;

status nvmlEventSetWait_v2(void *set, event_data *data, u32 timeout_ms) {
    double until = now() + timeout_ms / 1e3;
    int slot;
    u64 xid;
    if (set != &delivered) return INVALID_ARGUMENT;
    for (;;) {
        load();
        if (global("wait.error", SUCCESS)) return (status)global("wait.error", SUCCESS);
        while (event(delivered + 1, &slot, &xid)) {
            delivered++;
            if (slot < 0 || slot >= SLOTS || !(watched[slot] & XID_EVENT)) continue;
            *data = (event_data){&slots[slot], XID_EVENT, xid, NO_INSTANCE, NO_INSTANCE};
            return SUCCESS;
        }
        if (now() >= until) return TIMEOUT;
        pause_ms(50);
    }
}
