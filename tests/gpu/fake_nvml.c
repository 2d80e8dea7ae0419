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
#include "fake_script.h"

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

#include "fake_readings.h"

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
