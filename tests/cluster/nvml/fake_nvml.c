/* A stand-in for libnvidia-ml.so.1: the functions that hpcml calls, with the ABI of NVIDIA's public nvml.h.
 *
 * build   cc -O2 -shared -fPIC -Wl,-soname,libnvidia-ml.so.1 -o libnvidia-ml.so.1 fake_nvml.c -lm
 * GPUs    FAKE_NVML_CONFIG=file with lines "key value"; "gpu" begins a GPU, "mig" an instance of it. Without a file there
 *         are FAKE_NVML_GPUS (2) of the default kind. The keys are in set_key() below.
 * power   P(t) = mean_w + swing_w * sin(2 pi t / period_s), where t is CLOCK_MONOTONIC, so that every process and the test
 *         agree; the energy counter is its exact integral, the average field that over one second.
 * faults  FAKE_NVML_FAIL=function=code[,after=calls][;...]     NVML's return codes: 3 not supported, 15 lost ...
 *         FAKE_NVML_SLOW=function=seconds[,after=calls][;...]
 *         lost_after_s, reset_after_s and xid_after_s count from nvmlInit.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef int Ret;
typedef unsigned int U32;
typedef unsigned long long U64;

enum { OK, UNINITIALIZED, INVALID, UNSUPPORTED, NO_PERMISSION, NOT_FOUND = 6, TOO_SMALL, TIMEOUT = 10, LOST = 15 };
enum { GPUS = 16, INSTANCES = 7 };

typedef struct Device {
    struct Device *board;                      /* of an instance; NULL: a whole GPU */
    struct Device *mig[INSTANCES];
    int instances, index, minor, mig_mode, gi, ci, sms, cores, major, minor_cc;
    int energy, average, instant, counters, gpm, util;
    int compute_mode, persistence, ecc, process, xid;
    int reasons, nvlinks; /* a mask of why clocks are lowered, -1: refused */
    char name[96], uuid[96], pci[32];
    double mean_w, swing_w, period_s, power_limit_w, default_limit_w;
    double lost_after_s, reset_after_s, xid_after_s, memory_mib, used_mib, reserved_mib;
    double throttle_share, util_percent, mem_util_percent, tensor_percent, dram_percent;
    U64 ecc_corrected, ecc_uncorrected;
    int xid_told;
} Device;

typedef union { double d; U32 ui; unsigned long ul; U64 ull; long long sll; int si; unsigned short us; } Value;
typedef struct { U32 id, scope; long long at_us, latency_us; U32 type; Ret ret; Value value; } FieldValue;
typedef struct { U32 version; U64 total, reserved, free, used; } MemoryV2;
typedef struct { U64 total, free, used; } Memory;
typedef struct { char legacy[16]; U32 domain, bus, device, id, subsystem; char bus_id[32]; } Pci;
typedef struct { Device *device; U64 type, data; U32 gi, ci; } Event;
typedef struct { U32 sms, copy, decoder, encoder, jpeg, ofa, gi_slices, ci_slices; U64 memory_mb; } Attributes;
typedef struct { U32 pid; U64 used; U32 gi, ci; } Process;
typedef struct { double t; } GpmSample;
typedef struct { U32 id; Ret ret; double value; char *short_name, *long_name, *unit; } GpmMetric;
typedef struct { U32 version, count; GpmSample *first, *second; GpmMetric metrics[]; } GpmMetrics;
typedef struct { U32 version, supported; } GpmSupport;
typedef struct { U32 gpu, memory; } Utilization;

static Device boards[GPUS], migs[GPUS * INSTANCES];
static int board_count, mig_count, initialized;
static double began;
static char driver[80] = "570.86.15";
static int cuda = 12080;

static double now(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return (double)at.tv_sec + 1e-9 * (double)at.tv_nsec;
}

/* ---- faults ---- */

typedef struct { char name[64]; int calls; } Count;
static Count counts[128];

static int call_number(const char *name) {
    for (int i = 0; i < 128; i++) {
        if (!counts[i].name[0]) snprintf(counts[i].name, sizeof counts[i].name, "%s", name);
        if (!strcmp(counts[i].name, name)) return ++counts[i].calls;
    }
    return 1;
}

/* Return what *variable* says for this call of *name*, or 0. */
static double injected(const char *variable, const char *name, int call) {
    const char *text = getenv(variable);
    size_t length = strlen(name);
    for (const char *at = text; at && *at; at = strchr(at, ';') ? strchr(at, ';') + 1 : NULL) {
        double value;
        int after = 0;
        if (strncmp(at, name, length) || at[length] != '=') continue;
        if (sscanf(at + length + 1, "%lf,after=%d", &value, &after) >= 1 && call > after) return value;
    }
    return 0;
}

static Ret enter(const char *name, Device *device) {
    int call = call_number(name);
    double slow_s = injected("FAKE_NVML_SLOW", name, call);
    if (slow_s > 0) {
        struct timespec left = {(time_t)slow_s, (long)((slow_s - floor(slow_s)) * 1e9)};
        nanosleep(&left, NULL);
    }
    Ret code = (Ret)injected("FAKE_NVML_FAIL", name, call);
    if (code) return code;
    if (!initialized && strcmp(name, "nvmlInitWithFlags")) return UNINITIALIZED;
    if (device) {
        Device *board = device->board ? device->board : device;
        if (board->lost_after_s >= 0 && now() - began >= board->lost_after_s) return LOST;
    }
    return OK;
}

#define ENTER(device) do { Ret code_ = enter(__func__, device); if (code_) return code_; } while (0)
#define NEED(what) do { if (!(what)) return UNSUPPORTED; } while (0)
#define WHOLE(device) NEED(!(device)->board)

/* ---- what the GPUs do ---- */

static double power_w(const Device *d, double t) { return d->mean_w + d->swing_w * sin(2 * M_PI * t / d->period_s); }
static double integral_j(const Device *d, double t) {
    return d->mean_w * t - d->swing_w * d->period_s / (2 * M_PI) * cos(2 * M_PI * t / d->period_s);
}
static U64 counter_mj(const Device *d, double t) {
    double from = d->reset_after_s >= 0 && t >= began + d->reset_after_s ? began + d->reset_after_s : 0;
    return (U64)(1000 * (integral_j(d, t) - integral_j(d, from)));
}
static U32 average_mw(const Device *d, double t) { return (U32)(1000 * (integral_j(d, t) - integral_j(d, t - 1))); }

/* ---- configuration ---- */

static void default_gpu(Device *d, int index) {
    memset(d, 0, sizeof *d);
    d->index = d->minor = index;
    d->major = 9, d->energy = d->average = d->instant = d->counters = d->gpm = d->util = 1;
    d->persistence = 1, d->ecc = 1, d->cores = 132 * 128, d->nvlinks = 18;
    snprintf(d->name, sizeof d->name, "NVIDIA H100 80GB HBM3");
    snprintf(d->uuid, sizeof d->uuid, "GPU-%08x-1111-2222-3333-444444444444", 0xfa4e0000u + (U32)index);
    snprintf(d->pci, sizeof d->pci, "00000000:%02X:00.0", 0x1a + index);
    d->mean_w = 250, d->swing_w = 50, d->period_s = 4, d->power_limit_w = d->default_limit_w = 700;
    d->memory_mib = 81559, d->used_mib = 20480, d->reserved_mib = 500;
    d->lost_after_s = d->reset_after_s = d->xid_after_s = -1, d->xid = 79;
    d->throttle_share = 0.25, d->util_percent = 93, d->mem_util_percent = 41, d->tensor_percent = 37, d->dram_percent = 52;
}

static void set_key(Device *d, const char *key, const char *value) {
#define TEXT(name) if (!strcmp(key, #name)) snprintf(d->name, sizeof d->name, "%s", value)
#define REAL(name) if (!strcmp(key, #name)) d->name = atof(value)
#define WHOLE_NUMBER(name) if (!strcmp(key, #name)) d->name = atoi(value)
    TEXT(name); TEXT(uuid); TEXT(pci);
    REAL(mean_w); REAL(swing_w); REAL(period_s); REAL(power_limit_w); REAL(default_limit_w);
    REAL(lost_after_s); REAL(reset_after_s); REAL(xid_after_s); REAL(memory_mib); REAL(used_mib); REAL(reserved_mib);
    REAL(throttle_share); REAL(util_percent); REAL(mem_util_percent); REAL(tensor_percent); REAL(dram_percent);
    WHOLE_NUMBER(minor); WHOLE_NUMBER(mig_mode); WHOLE_NUMBER(gi); WHOLE_NUMBER(ci); WHOLE_NUMBER(sms);
    WHOLE_NUMBER(cores); WHOLE_NUMBER(energy); WHOLE_NUMBER(average); WHOLE_NUMBER(instant);
    WHOLE_NUMBER(counters); WHOLE_NUMBER(gpm); WHOLE_NUMBER(util); WHOLE_NUMBER(compute_mode); WHOLE_NUMBER(persistence);
    WHOLE_NUMBER(ecc); WHOLE_NUMBER(process); WHOLE_NUMBER(xid); WHOLE_NUMBER(ecc_corrected); WHOLE_NUMBER(ecc_uncorrected);
    WHOLE_NUMBER(reasons); WHOLE_NUMBER(nvlinks);
    if (!strcmp(key, "cc")) sscanf(value, "%d.%d", &d->major, &d->minor_cc);
}

static void configure(void) {
    const char *path = getenv("FAKE_NVML_CONFIG"), *count = getenv("FAKE_NVML_GPUS");
    board_count = mig_count = 0;
    if (!path) {
        for (; board_count < (count ? atoi(count) : 2); board_count++) default_gpu(&boards[board_count], board_count);
        return;
    }
    FILE *file = fopen(path, "r");
    char line[256], key[64], value[160];
    Device *at = NULL;
    while (file && fgets(line, sizeof line, file)) {
        value[0] = 0;
        if (sscanf(line, "%63s %159[^\n]", key, value) < 1) continue;
        if (!strcmp(key, "driver")) snprintf(driver, sizeof driver, "%s", value);
        else if (!strcmp(key, "cuda")) cuda = atoi(value);
        else if (!strcmp(key, "gpu")) {
            at = &boards[board_count];
            default_gpu(at, board_count++);
        } else if (!strcmp(key, "mig") && board_count) {
            Device *board = &boards[board_count - 1];
            at = &migs[mig_count++];
            *at = *board;
            at->board = board, at->instances = 0, at->gi = board->instances + 1, at->ci = 0, at->sms = 16;
            snprintf(at->uuid, sizeof at->uuid, "MIG-%08x-aaaa-bbbb-cccc-%012x", (U32)mig_count, (U32)board->index);
            board->mig_mode = 1;
            board->mig[board->instances++] = at;
        } else if (at) set_key(at, key, value);
    }
    if (file) fclose(file);
}

/* ---- the library ---- */

Ret nvmlInitWithFlags(U32 flags) {
    (void)flags;
    ENTER(NULL);
    if (!initialized++) {
        began = now();
        configure();
    }
    return OK;
}
Ret nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
Ret nvmlShutdown(void) {
    if (initialized && !--initialized) memset(counts, 0, sizeof counts);
    return OK;
}
const char *nvmlErrorString(Ret code) { (void)code; return "an error of the fake"; }

Ret nvmlSystemGetDriverVersion(char *text, U32 size) { ENTER(NULL); snprintf(text, size, "%s", driver); return OK; }
Ret nvmlSystemGetCudaDriverVersion_v2(int *version) { ENTER(NULL); *version = cuda; return OK; }
Ret nvmlDeviceGetCount_v2(U32 *count) { ENTER(NULL); *count = (U32)board_count; return OK; }

Ret nvmlDeviceGetHandleByIndex_v2(U32 index, Device **device) {
    ENTER(NULL);
    if ((int)index >= board_count) return INVALID;
    *device = &boards[index];
    return enter("nvmlDeviceGetHandleByIndex", *device);
}

Ret nvmlDeviceGetHandleByUUID(const char *uuid, Device **device) {
    ENTER(NULL);
    for (int i = 0; i < board_count; i++) if (!strcmp(boards[i].uuid, uuid)) return *device = &boards[i], OK;
    for (int i = 0; i < mig_count; i++) if (!strcmp(migs[i].uuid, uuid)) return *device = &migs[i], OK;
    return NOT_FOUND;
}

Ret nvmlDeviceGetUUID(Device *d, char *text, U32 size) { ENTER(d); snprintf(text, size, "%s", d->uuid); return OK; }
Ret nvmlDeviceGetName(Device *d, char *text, U32 size) { ENTER(d); snprintf(text, size, "%s", d->name); return OK; }
Ret nvmlDeviceGetMinorNumber(Device *d, U32 *minor) { ENTER(d); WHOLE(d); *minor = (U32)d->minor; return OK; }

Ret nvmlDeviceGetPciInfo_v3(Device *d, Pci *pci) {
    ENTER(d);
    memset(pci, 0, sizeof *pci);
    snprintf(pci->bus_id, sizeof pci->bus_id, "%s", d->pci);
    return OK;
}

Ret nvmlDeviceGetCudaComputeCapability(Device *d, int *major, int *minor) {
    ENTER(d);
    *major = d->major, *minor = d->minor_cc;
    return OK;
}

Ret nvmlDeviceGetNumGpuCores(Device *d, U32 *cores) { ENTER(d); WHOLE(d); *cores = (U32)d->cores; return OK; }

Ret nvmlDeviceGetAttributes_v2(Device *d, Attributes *found) {
    ENTER(d);
    NEED(d->board);
    memset(found, 0, sizeof *found);
    found->sms = (U32)d->sms, found->memory_mb = (U64)d->memory_mib;
    return OK;
}

Ret nvmlDeviceGetMaxPcieLinkGeneration(Device *d, U32 *generation) { ENTER(d); WHOLE(d); *generation = 5; return OK; }
Ret nvmlDeviceGetMaxPcieLinkWidth(Device *d, U32 *width) { ENTER(d); WHOLE(d); *width = 16; return OK; }

Ret nvmlDeviceGetNvLinkState(Device *d, U32 link, U32 *is_up) {
    ENTER(d);
    NEED(d->nvlinks);
    if (link >= 18) return INVALID;
    *is_up = (int)link < d->nvlinks;
    return OK;
}

static U64 bytes(double mib) { return (U64)(mib * 1048576); }

Ret nvmlDeviceGetMemoryInfo(Device *d, Memory *memory) {
    ENTER(d);
    *memory = (Memory){bytes(d->memory_mib), bytes(d->memory_mib - d->used_mib - d->reserved_mib),
                       bytes(d->used_mib + d->reserved_mib)};
    return OK;
}

Ret nvmlDeviceGetMemoryInfo_v2(Device *d, MemoryV2 *memory) {
    ENTER(d);
    memory->total = bytes(d->memory_mib), memory->reserved = bytes(d->reserved_mib);
    memory->used = bytes(d->used_mib), memory->free = bytes(d->memory_mib - d->used_mib - d->reserved_mib);
    return OK;
}

static U32 milliwatts(double watts) { return (U32)(1000 * watts + 0.5); }

Ret nvmlDeviceGetPowerUsage(Device *d, U32 *mw) { ENTER(d); WHOLE(d); *mw = milliwatts(power_w(d, now())); return OK; }
Ret nvmlDeviceGetEnforcedPowerLimit(Device *d, U32 *mw) { ENTER(d); WHOLE(d); *mw = milliwatts(d->power_limit_w); return OK; }
Ret nvmlDeviceGetPowerManagementDefaultLimit(Device *d, U32 *mw) {
    ENTER(d);
    WHOLE(d);
    *mw = milliwatts(d->default_limit_w);
    return OK;
}

Ret nvmlDeviceGetTotalEnergyConsumption(Device *d, U64 *mj) {
    ENTER(d);
    WHOLE(d);
    NEED(d->energy);
    *mj = counter_mj(d, now());
    return OK;
}

Ret nvmlDeviceGetComputeMode(Device *d, U32 *mode) { ENTER(d); WHOLE(d); *mode = (U32)d->compute_mode; return OK; }
Ret nvmlDeviceGetPersistenceMode(Device *d, U32 *mode) { ENTER(d); WHOLE(d); *mode = (U32)d->persistence; return OK; }
Ret nvmlDeviceGetEccMode(Device *d, U32 *current, U32 *pending) {
    ENTER(d);
    WHOLE(d);
    *current = *pending = (U32)d->ecc;
    return OK;
}
Ret nvmlDeviceGetMigMode(Device *d, U32 *current, U32 *pending) {
    ENTER(d);
    WHOLE(d);
    NEED(d->major >= 8);
    *current = *pending = (U32)d->mig_mode;
    return OK;
}
Ret nvmlDeviceGetMaxMigDeviceCount(Device *d, U32 *count) { ENTER(d); *count = INSTANCES; return OK; }
Ret nvmlDeviceGetMigDeviceHandleByIndex(Device *d, U32 index, Device **found) {
    ENTER(d);
    if ((int)index >= d->instances) return NOT_FOUND;
    *found = d->mig[index];
    return OK;
}
Ret nvmlDeviceGetGpuInstanceId(Device *d, U32 *id) { ENTER(d); NEED(d->board); *id = (U32)d->gi; return OK; }
Ret nvmlDeviceGetComputeInstanceId(Device *d, U32 *id) { ENTER(d); NEED(d->board); *id = (U32)d->ci; return OK; }

Ret nvmlDeviceGetClockInfo(Device *d, U32 type, U32 *mhz) { ENTER(d); WHOLE(d); *mhz = type == 2 ? 2619 : 1755; return OK; }
Ret nvmlDeviceGetMaxClockInfo(Device *d, U32 type, U32 *mhz) { ENTER(d); WHOLE(d); *mhz = type == 2 ? 2619 : 1980; return OK; }
Ret nvmlDeviceGetApplicationsClock(Device *d, U32 type, U32 *mhz) {
    ENTER(d);
    WHOLE(d);
    *mhz = type == 2 ? 2619 : 1830;
    return OK;
}
static Ret reasons(const Device *d, U64 *mask) { NEED(d->reasons >= 0); *mask = (U64)d->reasons; return OK; }
Ret nvmlDeviceGetCurrentClocksEventReasons(Device *d, U64 *mask) { ENTER(d); WHOLE(d); return reasons(d, mask); }
Ret nvmlDeviceGetCurrentClocksThrottleReasons(Device *d, U64 *mask) { ENTER(d); WHOLE(d); return reasons(d, mask); }
Ret nvmlDeviceGetTemperature(Device *d, U32 sensor, U32 *c) { (void)sensor; ENTER(d); WHOLE(d); *c = 61; return OK; }

Ret nvmlDeviceGetUtilizationRates(Device *d, Utilization *found) {
    ENTER(d);
    WHOLE(d);
    NEED(d->util);
    *found = (Utilization){(U32)d->util_percent, (U32)d->mem_util_percent};
    return OK;
}

Ret nvmlDeviceGetComputeRunningProcesses_v3(Device *d, U32 *count, Process *found) {
    ENTER(d);
    U32 room = *count;
    *count = d->process ? 1 : 0;
    if (room < *count) return TOO_SMALL;
    if (*count) found[0] = (Process){(U32)d->process, 1 << 20, 0, 0};
    return OK;
}

static int answer(const Device *d, double t, U32 id, U32 scope, Value *value) { /* returns the type of the value; -1: unsupported */
    switch (id) {
    case 3: value->ull = d->ecc_corrected; return d->ecc ? 3 : -1;
    case 4: value->ull = d->ecc_uncorrected; return d->ecc ? 3 : -1;
    case 83: value->ull = counter_mj(d, t); return d->energy ? 3 : -1;
    case 185: value->ui = average_mw(d, t); return d->average ? 1 : -1;
    case 186: value->ui = milliwatts(power_w(d, t)); return d->instant ? 1 : -1;
    case 74: value->ull = (U64)(1e9 * d->throttle_share * t); return d->counters ? 3 : -1;
    case 75: case 76: case 269: case 270: case 271: value->ull = 0; return d->counters ? 3 : -1;
    case 138: case 139: /* NVLink, KiB: of all links, or of one */
        value->ull = (U64)(1024 * t) * (scope == 0xFFFFFFFF ? (U64)d->nvlinks : 1);
        return 3;
    case 197: case 198: value->ull = (U64)(1048576 * t); return 3;                    /* PCIe, bytes */
    default: return -1;
    }
}

Ret nvmlDeviceGetFieldValues(Device *d, int count, FieldValue *fields) {
    ENTER(d);
    for (int i = 0; i < count; i++) {
        double t = now();
        int type = d->board ? -1 : answer(d, t, fields[i].id, fields[i].scope, &fields[i].value);
        fields[i].at_us = (long long)(1e6 * t), fields[i].latency_us = 1;
        fields[i].ret = type < 0 ? UNSUPPORTED : OK;
        fields[i].type = type < 0 ? 0 : (U32)type;
    }
    return OK;
}

Ret nvmlGpmQueryDeviceSupport(Device *d, GpmSupport *support) { ENTER(d); support->supported = (U32)d->gpm; return OK; }
Ret nvmlGpmSampleAlloc(GpmSample **sample) { ENTER(NULL); *sample = calloc(1, sizeof **sample); return OK; }
Ret nvmlGpmSampleFree(GpmSample *sample) { free(sample); return OK; }
static const Device *gpm_of;
Ret nvmlGpmSampleGet(Device *d, GpmSample *sample) {
    ENTER(d);
    NEED(d->gpm && !d->mig_mode);
    gpm_of = d, sample->t = now();
    return OK;
}
Ret nvmlGpmMigSampleGet(Device *d, U32 gi, GpmSample *sample) {
    ENTER(d);
    for (int i = 0; i < d->instances; i++) if (d->mig[i]->gi == (int)gi) return gpm_of = d->mig[i], sample->t = now(), OK;
    return INVALID;
}
Ret nvmlGpmMetricsGet(GpmMetrics *asked) {
    ENTER(NULL);
    if (asked->second->t <= asked->first->t) return INVALID;
    for (U32 i = 0; i < asked->count; i++) {
        U32 id = asked->metrics[i].id;
        asked->metrics[i].ret = OK;
        asked->metrics[i].value = id == 2 ? 88 : id == 5 || id == 7 ? gpm_of->tensor_percent : id == 10 ? gpm_of->dram_percent : 0;
    }
    return OK;
}

typedef struct { Device *devices[GPUS]; int count; } EventSet;
Ret nvmlEventSetCreate(EventSet **set) { ENTER(NULL); *set = calloc(1, sizeof **set); return OK; }
Ret nvmlEventSetFree(EventSet *set) { free(set); return OK; }
Ret nvmlDeviceGetSupportedEventTypes(Device *d, U64 *types) { ENTER(d); WHOLE(d); *types = 0x1f; return OK; }
Ret nvmlDeviceRegisterEvents(Device *d, U64 types, EventSet *set) {
    (void)types;
    ENTER(d);
    WHOLE(d);
    set->devices[set->count++] = d;
    return OK;
}
Ret nvmlEventSetWait_v2(EventSet *set, Event *event, U32 timeout_ms) {
    (void)timeout_ms;
    ENTER(NULL);
    for (int i = 0; i < set->count; i++) {
        Device *d = set->devices[i];
        if (d->xid_told || d->xid_after_s < 0 || now() - began < d->xid_after_s) continue;
        d->xid_told = 1;
        *event = (Event){d, 8, (U64)d->xid, ~0u, ~0u};
        return OK;
    }
    return TIMEOUT;
}
