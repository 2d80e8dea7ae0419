/* What a card of fake_nvml.c answers about itself. */

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

PLAIN(nvmlDeviceGetMinorNumber, "minor", u32, "minor", slot)
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
