/* A stand-in for the NVIDIA driver's library, for tests. Written from the public ABI; it holds no NVIDIA code.
 *
 * What it answers stands in a script, a text file named by FAKE_NVML_SCRIPT, which is read anew at every call, so that a test can
 * change the weather while a program runs. One "KEY VALUE" a line; keys of a card begin with its slot ("3.util 100") or with "*"
 * for all cards; a card's own line wins. "3.mig 2" cuts card 3 into two MIG instances, whose keys begin with "3m0" and "3m1" and have no
 * general ones. tests/gpu/fake.py writes the script and lists the keys.
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

static int present(int slot) { return slot < (int)global("count", 8) && slot < CARDS && !number(slot, "absent", 0); }

status nvmlDeviceGetCount_v2(u32 *count) {
    load();
    if (!users) return UNINITIALIZED;
    *count = 0;
    for (int slot = 0; slot < CARDS; slot++) *count += present(slot);
    return SUCCESS;
}

status nvmlDeviceGetHandleByIndex_v2(u32 index, void **device) {
    load();
    if (!users) return UNINITIALIZED;
    for (int slot = 0; slot < CARDS; slot++) {
        if (!present(slot) || index--) continue;
        *device = &slots[slot];
        return (status)number(slot, "handle.error", SUCCESS);
    }
    return INVALID_ARGUMENT;
}

status nvmlDeviceGetUUID(void *device, char *into, u32 room) {
    char otherwise[64];
    GUARD("uuid");
    snprintf(otherwise, sizeof otherwise, "%s-%08x-fa4e-4000-8000-%012x", is_part(slot) ? "MIG" : "GPU", card_of(slot),
             is_part(slot) ? 1 + part_of(slot) : slot);
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
    if (number(slot, "mig", 0)) return NOT_SUPPORTED;
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

/* Fields by key: an error of its own stands in "KEY.error". Those of a link have the link as scope. */
static status field(int slot, field_value *value) {
    enum { AS_U32 = 1, AS_U64 = 3, LINKS = 12 };
    static const struct {
        u32 field, type;
        const char *key;
        u64 otherwise;
    } known[] = {
        {82, AS_U32, "memory_temperature", 41}, {91, AS_U32, "nvlinks", LINKS},      {94, AS_U32, "pcie_replays", 0},
        {38, AS_U64, "nvlink_crc_flit", 0},     {45, AS_U64, "nvlink_crc_data", 0},  {52, AS_U64, "nvlink_replay", 0},
        {59, AS_U64, "nvlink_recovery", 0},     {160, AS_U64, "nvlink_ecc", 0},      {208, AS_U64, "nvlink_each_receive", 0},
        {215, AS_U64, "nvlink_each_recovery", 0},
    };
    char key[64], whole[64];
    if (value->field == 165) {
        if (value->scope >= number(slot, "nvlinks", LINKS)) return INVALID_ARGUMENT;
        snprintf(key, sizeof key, "nvlink_state.%u", value->scope);
        value->type = AS_U32;
        value->value.small = (u32)number(slot, key, 1);
        return (status)number(slot, "nvlink_state_field.error", SUCCESS);
    }
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        if (known[i].field != value->field) continue;
        if (known[i].field > 200 && !text(slot, known[i].key, key, sizeof key)) return NOT_SUPPORTED;
        snprintf(whole, sizeof whole, "%s.error", known[i].key);
        value->type = known[i].type;
        if (known[i].type == AS_U32) value->value.small = (u32)number(slot, known[i].key, known[i].otherwise);
        else value->value.large = number(slot, known[i].key, known[i].otherwise);
        return (status)number(slot, whole, SUCCESS);
    }
    return NOT_SUPPORTED;
}

status nvmlDeviceGetFieldValues(void *device, int count, field_value *values) {
    GUARD("fields");
    for (int i = 0; i < count; i++) values[i].result = field(slot, &values[i]);
    return SUCCESS;
}

status nvmlDeviceGetNvLinkState(void *device, u32 link, u32 *active) {
    char key[64];
    GUARD("nvlink_state");
    if (link >= number(slot, "nvlinks", 12)) return INVALID_ARGUMENT;
    snprintf(key, sizeof key, "nvlink_state.%u", link);
    *active = number(slot, key, 1) != 0;
    return SUCCESS;
}

status nvmlDeviceGetRemappedRows(void *device, u32 *corrected, u32 *uncorrected, u32 *pending, u32 *failure) {
    GUARD("remapped");
    if (number(slot, "mig", 0)) return NOT_SUPPORTED;
    *corrected = (u32)number(slot, "remapped_corrected", 0);
    *uncorrected = (u32)number(slot, "remapped_uncorrected", 0);
    *pending = (u32)number(slot, "remap_pending", 0);
    *failure = (u32)number(slot, "remap_failure", 0);
    return SUCCESS;
}

/* Only for a script that has them: no card since Ampere retires pages. */
status nvmlDeviceGetRetiredPages(void *device, u32 uncorrected, u32 *count, u64 *addresses) {
    char value[64];
    const char *key = uncorrected ? "retired_uncorrected" : "retired_corrected";
    GUARD("retired");
    if (!text(slot, key, value, sizeof value)) return NOT_SUPPORTED;
    u32 room = *count;
    *count = (u32)number(slot, key, 0);
    for (u32 i = 0; addresses && i < *count && i < room; i++) addresses[i] = 4096ULL * i;
    return *count > room || (*count && !addresses) ? INSUFFICIENT_SIZE : SUCCESS;
}

PLAIN(nvmlDeviceGetCurrPcieLinkGeneration, "pcie", u32, "pcie_generation", 4)
PLAIN(nvmlDeviceGetCurrPcieLinkWidth, "pcie", u32, "pcie_width", 16)
PLAIN(nvmlDeviceGetMaxPcieLinkGeneration, "pcie", u32, "pcie_generation_max", 4)
PLAIN(nvmlDeviceGetMaxPcieLinkWidth, "pcie", u32, "pcie_width_max", 16)
PLAIN(nvmlDeviceGetPcieReplayCounter, "replays", u32, "pcie_replays", 0)

status nvmlDeviceGetPcieThroughput(void *device, u32 receive, u32 *kilobytes) {
    GUARD("throughput");
    pause_ms(20);
    *kilobytes = (u32)number(slot, receive ? "pcie_receive_kb" : "pcie_transmit_kb", 0);
    return SUCCESS;
}

/* ------------------------------------------------------------------ MIG: "N.mig COUNT" */

static int is_cut(int slot) {
    char value[16];
    return text(slot, "mig", value, sizeof value);
}

status nvmlDeviceGetMigMode(void *device, u32 *now, u32 *pending) {
    GUARD("mig");
    *now = *pending = is_cut(slot);
    return SUCCESS;
}

status nvmlDeviceGetMaxMigDeviceCount(void *device, u32 *count) {
    GUARD("mig");
    *count = (u32)number(slot, "mig_most", PARTS - 1);
    return SUCCESS;
}

status nvmlDeviceGetMigDeviceHandleByIndex(void *device, u32 index, void **part) {
    GUARD("mig");
    int handle = CARDS + slot * PARTS + (int)index;
    if (index >= number(slot, "mig", 0) || index >= PARTS || number(handle, "absent", 0)) return NOT_FOUND;
    *part = &slots[handle];
    return SUCCESS;
}

PLAIN(nvmlDeviceGetGpuInstanceId, "instance", u32, "gpu_instance", (u64)(1 + part_of(slot)))
PLAIN(nvmlDeviceGetComputeInstanceId, "instance", u32, "compute_instance", 0)

/* ------------------------------------------------------------------ GPM: "N.gpm 1", and percentages in gpm_sm and so on */

typedef struct {
    int slot;
    double taken;
} sample;

typedef struct {
    u32 id;
    status result;
    double value;
    const char *names[3];
} gpm_metric;

typedef struct {
    u32 version, count;
    sample *older, *newer;
    gpm_metric metrics[];
} gpm_request;

status nvmlGpmQueryDeviceSupport(void *device, u32 support[2]) {
    GUARD("gpm");
    support[1] = (u32)number(slot, "gpm", 0);
    return SUCCESS;
}

status nvmlGpmSampleAlloc(sample **made) {
    *made = calloc(1, sizeof **made);
    return SUCCESS;
}

status nvmlGpmSampleGet(void *device, sample *into) {
    GUARD("gpm_sample");
    if (!number(slot, "gpm", 0)) return NOT_SUPPORTED;
    *into = (sample){slot, now()};
    return SUCCESS;
}

status nvmlGpmMigSampleGet(void *device, u32 instance, sample *into) {
    GUARD("gpm_sample");
    for (int handle = CARDS + slot * PARTS; handle < CARDS + (slot + 1) * PARTS; handle++) {
        if (number(handle, "gpu_instance", (u64)(1 + part_of(handle))) != instance) continue;
        *into = (sample){handle, now()};
        return SUCCESS;
    }
    return NOT_FOUND;
}

status nvmlGpmMetricsGet(gpm_request *request) {
    static const char *const keys[] = {[1] = "gpm_graphics", [2] = "gpm_sm", [3] = "gpm_occupancy", [5] = "gpm_tensor", [10] = "gpm_dram"};
    char value[64];
    load();
    if (request->version != 1) return ARGUMENT_VERSION_MISMATCH;
    if (request->older->slot != request->newer->slot) return INVALID_ARGUMENT;
    for (u32 i = 0; i < request->count; i++) {
        gpm_metric *metric = &request->metrics[i];
        const char *key = metric->id < sizeof keys / sizeof *keys ? keys[metric->id] : NULL;
        int known = key && text(request->newer->slot, key, value, sizeof value);
        metric->result = known ? SUCCESS : NOT_SUPPORTED;
        metric->value = !known ? 0 : request->newer->taken - request->older->taken < 0.1 ? 0.0 / 0.0 : strtod(value, NULL);
    }
    return SUCCESS;
}

/* ------------------------------------------------------------------ processes */

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

/* ------------------------------------------------------------------ events: "event.N SLOT XID [GPU_INSTANCE COMPUTE_INSTANCE]", N counting from 1 */

static int event(u64 serial, int *slot, u64 *xid, u32 instances[2]) {
    char key[32], value[64];
    instances[0] = instances[1] = (u32)NO_INSTANCE;
    snprintf(key, sizeof key, "event.%llu", serial);
    return find(key, value, sizeof value) && sscanf(value, "%d %llu %u %u", slot, xid, &instances[0], &instances[1]) >= 2;
}

status nvmlEventSetCreate(void **set) {
    int slot;
    u64 xid;
    u32 instances[2];
    load();
    if (!users) return UNINITIALIZED;
    *set = &delivered;
    while (event(delivered + 1, &slot, &xid, instances)) delivered++; /* what happened before is not told */
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
    u32 instances[2];
    if (set != &delivered) return INVALID_ARGUMENT;
    for (;;) {
        load();
        if (global("wait.error", SUCCESS)) return (status)global("wait.error", SUCCESS);
        while (event(delivered + 1, &slot, &xid, instances)) {
            delivered++;
            if (slot < 0 || slot >= CARDS || !(watched[slot] & XID_EVENT)) continue;
            *data = (event_data){&slots[slot], XID_EVENT, xid, instances[0], instances[1]};
            return SUCCESS;
        }
        if (now() >= until) return TIMEOUT;
        pause_ms(50);
    }
}

/* ------------------------------------------------------------------ events of the system: "unbind N", N counting up */

static u64 unbindings;

typedef struct {
    u32 version;
    void *set;
} system_set;

typedef struct {
    u32 version;
    u64 types;
    void *set;
} system_registration;

typedef struct {
    u64 type;
    u32 gpu;
} system_event;

typedef struct {
    u32 version, timeout_ms;
    void *set;
    system_event *events;
    u32 room, count;
} system_wait;

status nvmlSystemEventSetCreate(system_set *request) {
    load();
    if (!users) return UNINITIALIZED;
    unbindings = global("unbind", 0);
    request->set = &unbindings;
    return SUCCESS;
}

status nvmlSystemRegisterEvents(system_registration *request) { return request->types == 1 ? SUCCESS : NOT_SUPPORTED; }

status nvmlSystemEventSetWait(system_wait *request) {
    load();
    request->count = 0;
    if (global("unbind", 0) <= unbindings) return TIMEOUT;
    unbindings = global("unbind", 0);
    request->events[request->count++] = (system_event){1, 0};
    return SUCCESS;
}
