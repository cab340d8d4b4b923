// The yardstick of the simulated device: the same Verilated board, clocked as fast as a plain loop can.
//
// usage: bare FILE EXPECT CYCLES [ADDRESS VALUE]...
// FILE holds pairs of 32-bit words: last (0 or 1), data. Writes the registers, waits 20,000 cycles for the board to prepare,
// then sends every word and takes EXPECT words, or stops after CYCLES. Prints: cycles seconds sent received.
// Built and run by bench/bare.py. Independent of sim/harness.cpp.

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "glue.h"
#include "verilated.h"

static void write(Model& board, uint32_t address, uint32_t value) {
    board.s_axil_awaddr = static_cast<uint16_t>(address);
    board.s_axil_wdata = value;
    board.s_axil_wstrb = 15;
    board.s_axil_awvalid = board.s_axil_wvalid = board.s_axil_bready = 1;
    for (int n = 0; n < 1000; ++n) {
        board.clk = 0;
        board.eval();
        const bool addressed = board.s_axil_awready, written = board.s_axil_wready, done = board.s_axil_bvalid;
        board.clk = 1;
        board.eval();
        if (addressed) board.s_axil_awvalid = 0;
        if (written) board.s_axil_wvalid = 0;
        if (done) break;
    }
    board.s_axil_awvalid = board.s_axil_wvalid = board.s_axil_bready = 0;
}

int main(int count, char** arguments) {
    if (count < 4) return 2;
    std::vector<uint32_t> words;
    FILE* file = std::fopen(arguments[1], "rb");
    if (!file) return 2;
    for (uint32_t word; std::fread(&word, 4, 1, file) == 1;) words.push_back(word);
    std::fclose(file);
    const uint64_t expect = std::strtoull(arguments[2], nullptr, 10);
    const uint64_t cycles = std::strtoull(arguments[3], nullptr, 10);

    VerilatedContext context;
    Model board(&context);
    for (int n = 0; n < 8; ++n) {
        board.rst = n < 4;
        board.clk = 0;
        board.eval();
        board.clk = 1;
        board.eval();
    }
    for (int n = 4; n + 1 < count; n += 2)
        write(board, std::strtoul(arguments[n], nullptr, 0), std::strtoul(arguments[n + 1], nullptr, 0));
    for (int n = 0; n < 40000; ++n) {
        board.clk = n & 1;
        board.eval();
    }

    uint64_t sent = 0, received = 0, passed = 0;
    const auto began = std::chrono::steady_clock::now();
    while (passed < cycles && (sent < words.size() || received < expect)) {
        board.s_axis_tvalid = sent < words.size();
        if (sent < words.size()) {
            board.s_axis_tlast = words[sent];
            board.s_axis_tdata = words[sent + 1];
        }
        board.m_axis_tready = 1;
        board.clk = 0;
        board.eval();
        if (board.s_axis_tvalid && board.s_axis_tready) sent += 2;
        received += board.m_axis_tvalid;
        board.clk = 1;
        board.eval();
        ++passed;
    }
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
    std::printf("%llu %.6f %llu %llu\n", static_cast<unsigned long long>(passed), took.count(),
                static_cast<unsigned long long>(sent / 2), static_cast<unsigned long long>(received));
    return 0;
}
