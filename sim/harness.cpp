// The simulated board as a C library: bursts of stream words, register accesses, probes, saved states.
//
// glue.h is generated per design by sim/build.py: it names the model, counts its probes and says whether it traces.
// Called by sim/simulate.py. Test: tests/test_simulate.py.

#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "glue.h"
#include "verilated.h"
#include "verilated_save.h"

namespace {

constexpr uint64_t kRegisterCycles = 100000;

struct Probe {
    const uint8_t* valid = nullptr;
    const uint8_t* data = nullptr;  // least significant byte first, as every port is on this machine
    uint32_t bytes = 0;
    std::vector<uint8_t> seen;
};

// One burst in each direction. Python owns the arrays and keeps it between slices. The layout stands in simulate.py too.
struct Exchange {
    const uint32_t* words;
    const uint8_t* lasts;
    uint64_t count;
    uint32_t* received;
    uint8_t* received_lasts;
    uint64_t expected;
    uint64_t taken;
    uint64_t given;
    uint64_t idle_cycles;
    uint64_t presented;  // 1 while a word is valid: it must then stay until it is taken
};

enum Outcome { kDone = 0, kMore = 1, kIdle = 2 };

class Simulation {
public:
    explicit Simulation(unsigned threads) {
        context_.threads(threads);
        context_.traceEverOn(kTrace);
        model_ = std::make_unique<Model>(&context_, "");
        wire_probes(*model_, probes.data());
    }

    ~Simulation() {
        if (trace_) trace_->close();
        model_->final();
    }

    void reset() {
        quiet();
        model_->rst = 1;
        for (int n = 0; n < 4; ++n) cycle();
        model_->rst = 0;
        for (int n = 0; n < 2; ++n) cycle();  // the reset is registered
    }

    void step(uint64_t count) {
        for (uint64_t n = 0; n < count; ++n) cycle();
    }

    bool write(uint32_t address, uint32_t value) {
        model_->s_axil_awaddr = static_cast<uint16_t>(address);
        model_->s_axil_wdata = value;
        model_->s_axil_wstrb = 15;
        bool addressed = false, written = false, answered = false;
        for (uint64_t n = 0; n < kRegisterCycles && !answered; ++n) {
            model_->s_axil_awvalid = !addressed;
            model_->s_axil_wvalid = !written;
            model_->s_axil_bready = !stalls();
            settle();
            const bool address_moves = model_->s_axil_awvalid && model_->s_axil_awready;
            const bool data_moves = model_->s_axil_wvalid && model_->s_axil_wready;
            answered = model_->s_axil_bready && model_->s_axil_bvalid;
            clock();
            addressed |= address_moves;
            written |= data_moves;
        }
        quiet();
        return answered;
    }

    bool read(uint32_t address, uint32_t* value) {
        model_->s_axil_araddr = static_cast<uint16_t>(address);
        bool addressed = false, answered = false;
        for (uint64_t n = 0; n < kRegisterCycles && !answered; ++n) {
            model_->s_axil_arvalid = !addressed;
            model_->s_axil_rready = !stalls();
            settle();
            const bool address_moves = model_->s_axil_arvalid && model_->s_axil_arready;
            answered = model_->s_axil_rready && model_->s_axil_rvalid;
            if (answered) *value = model_->s_axil_rdata;
            clock();
            addressed |= address_moves;
        }
        quiet();
        return answered;
    }

    Outcome exchange(Exchange& burst, uint64_t max_cycles, uint64_t idle_limit) {
        if (stall_below_ || probing || trace_) return move<false>(burst, max_cycles, idle_limit);
        return move<true>(burst, max_cycles, idle_limit);
    }

    void stall(double probability, uint64_t seed) {
        stall_below_ = static_cast<uint64_t>(probability * 4294967296.0);
        random_ = seed * 0x9e3779b97f4a7c15u + 0x2545f4914f6cdd1du;
        if (!random_) random_ = 1;
    }

    bool trace(const char* path) {
        if (!kTrace) return false;
        trace_ = std::make_unique<Trace>();
        attach(*model_, *trace_);
        trace_->open(path);
        return trace_->isOpen();
    }

    bool save(const char* path) {
        VerilatedSave file;
        file.open(path);
        if (!file.isOpen()) return false;
        file.write(&cycles, sizeof cycles);
        file.write(&random_, sizeof random_);
        file << *model_;
        file.close();
        return true;
    }

    bool restore(const char* path) {
        VerilatedRestore file;
        file.open(path);
        if (!file.isOpen()) return false;
        file.read(&cycles, sizeof cycles);
        file.read(&random_, sizeof random_);
        file >> *model_;
        file.close();
        return true;
    }

    uint64_t cycles = 0;
    bool probing = false;
    std::vector<Probe> probes{kProbes};

private:
    VerilatedContext context_;
    std::unique_ptr<Model> model_;
    std::unique_ptr<Trace> trace_;
    uint64_t stall_below_ = 0;
    uint64_t random_ = 1;

    bool stalls() {
        if (!stall_below_) return false;
        random_ ^= random_ >> 12;
        random_ ^= random_ << 25;
        random_ ^= random_ >> 27;
        return (random_ * 0x2545f4914f6cdd1du) >> 32 < stall_below_;
    }

    void quiet() {
        model_->s_axis_tvalid = model_->m_axis_tready = 0;
        model_->s_axil_awvalid = model_->s_axil_wvalid = model_->s_axil_bready = 0;
        model_->s_axil_arvalid = model_->s_axil_rready = 0;
    }

    // Inputs are set before; outputs may be read after, also those that depend on inputs within the cycle.
    void settle() {
        model_->clk = 0;
        model_->eval();
        if (trace_) trace_->dump(2 * cycles);
    }

    void clock() {
        if (probing) record();
        edge();
        if (trace_) trace_->dump(2 * cycles - 1);
    }

    void edge() {
        model_->clk = 1;
        model_->eval();
        ++cycles;
    }

    void cycle() {
        settle();
        clock();
    }

    void record() {
        for (Probe& probe : probes)
            if (*probe.valid) probe.seen.insert(probe.seen.end(), probe.data, probe.data + probe.bytes);
    }

    template <bool kPlain>
    Outcome move(Exchange& burst, uint64_t max_cycles, uint64_t idle_limit) {
        Model& model = *model_;
        Outcome outcome = kMore;
        for (uint64_t n = 0; n < max_cycles; ++n) {
            if (burst.taken == burst.count && burst.given == burst.expected) {
                outcome = kDone;
                break;
            }
            if (burst.idle_cycles >= idle_limit) {
                outcome = kIdle;
                break;
            }
            if (!burst.presented && burst.taken < burst.count && (kPlain || !stalls())) {
                model.s_axis_tdata = burst.words[burst.taken];
                model.s_axis_tlast = burst.lasts[burst.taken];
                burst.presented = 1;
            }
            model.s_axis_tvalid = static_cast<uint8_t>(burst.presented);
            model.m_axis_tready = burst.given < burst.expected && (kPlain || !stalls());
            if (kPlain) {
                model.clk = 0;
                model.eval();
            } else {
                settle();
            }
            ++burst.idle_cycles;
            if (model.s_axis_tvalid && model.s_axis_tready) {
                ++burst.taken;
                burst.presented = burst.idle_cycles = 0;
            }
            if (model.m_axis_tready && model.m_axis_tvalid) {
                burst.received[burst.given] = model.m_axis_tdata;
                burst.received_lasts[burst.given] = model.m_axis_tlast;
                ++burst.given;
                burst.idle_cycles = 0;
            }
            if (kPlain)
                edge();
            else
                clock();
        }
        if (outcome == kMore && burst.taken == burst.count && burst.given == burst.expected) outcome = kDone;
        if (outcome != kMore) quiet();
        return outcome;
    }
};

}  // namespace

#define GW_API extern "C" __attribute__((visibility("default")))

GW_API Simulation* gw_create(unsigned threads) {
    try {
        return new Simulation(threads);
    } catch (...) {
        return nullptr;
    }
}
GW_API void gw_destroy(Simulation* self) { delete self; }
GW_API void gw_reset(Simulation* self) { self->reset(); }
GW_API void gw_step(Simulation* self, uint64_t cycles) { self->step(cycles); }
GW_API int gw_write(Simulation* self, uint32_t address, uint32_t value) { return self->write(address, value); }
GW_API int gw_read(Simulation* self, uint32_t address, uint32_t* value) { return self->read(address, value); }
GW_API int gw_exchange(Simulation* self, Exchange* burst, uint64_t max_cycles, uint64_t idle_limit) {
    return self->exchange(*burst, max_cycles, idle_limit);
}
GW_API void gw_stall(Simulation* self, double probability, uint64_t seed) { self->stall(probability, seed); }
GW_API uint64_t gw_cycles(Simulation* self) { return self->cycles; }
GW_API int gw_trace(Simulation* self, const char* path) { return self->trace(path); }
GW_API int gw_save(Simulation* self, const char* path) { return self->save(path); }
GW_API int gw_restore(Simulation* self, const char* path) { return self->restore(path); }
GW_API void gw_probe(Simulation* self, int enable) { self->probing = enable; }
GW_API uint32_t gw_probe_count() { return kProbes; }
GW_API uint32_t gw_probe_bytes(Simulation* self, uint32_t n) { return self->probes[n].bytes; }
GW_API uint64_t gw_probe_size(Simulation* self, uint32_t n) { return self->probes[n].seen.size(); }
GW_API const uint8_t* gw_probe_data(Simulation* self, uint32_t n) { return self->probes[n].seen.data(); }
GW_API void gw_probe_clear(Simulation* self) {
    for (Probe& probe : self->probes) std::vector<uint8_t>().swap(probe.seen);
}
