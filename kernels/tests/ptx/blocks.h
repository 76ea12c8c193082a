// A launch of a kernel: its thread blocks one after the other, each CUDA thread of one a fiber where the kernel has
// barriers or shuffles. Fibers take turns from the first to the last and then the other way round, so that what one
// needs of another without a barrier between them shows. A barrier opens once every thread of the block is at it, a
// shuffle once all 32 lanes are at the same one, with a mask of all; where neither can happen the launch is a fault.
#pragma once
#include "machine.h"

#include <ucontext.h>

using Kernel = void (*)(const Thread&);
struct Entry {
    const char* name;
    Kernel kernel;
    bool meets;  // has barriers or shuffles
};

constexpr int warp = 32, shared_bytes = 48 << 10, stack_bytes = 256 << 10;

struct Fiber {
    enum State { ready, at_barrier, at_shuffle, ended };
    ucontext_t context;
    Thread thread;
    State state;
    int line;
    u32 sent, from, mask, got;
    bool got_it;
};

static ucontext_t scheduler;
static std::vector<Fiber> fibers;
static std::vector<std::vector<u8>> stacks;
static u32 running;
static Kernel current;

static void wait_for_others(Fiber::State state, int line) {
    fibers[running].state = state;
    fibers[running].line = line;
    swapcontext(&fibers[running].context, &scheduler);
}

static void barrier(int line) { wait_for_others(Fiber::at_barrier, line); }

static u32 shuffled(u32 value, u32 from, u32 mask, int line, bool* inside) {
    Fiber& self = fibers[running];
    self.sent = value, self.from = from, self.mask = mask;
    wait_for_others(Fiber::at_shuffle, line);
    *inside = self.got_it;
    return self.got;
}

static void run_fiber(int i) {
    current(fibers[i].thread);
    fibers[i].state = Fiber::ended;
    swapcontext(&fibers[i].context, &scheduler);
}

static bool open_shuffle(u32 first) {
    Fiber* lanes = &fibers[first];
    for (u32 lane = 0; lane < warp; ++lane)
        if (lanes[lane].state != Fiber::at_shuffle || lanes[lane].line != lanes[0].line || ~lanes[lane].mask) return false;
    for (u32 lane = 0; lane < warp; ++lane) {
        lanes[lane].got_it = lanes[lane].from < warp;
        lanes[lane].got = lanes[lanes[lane].got_it ? lanes[lane].from : lane].sent;
    }
    for (u32 lane = 0; lane < warp; ++lane) lanes[lane].state = Fiber::ready;
    return true;
}

static bool open_barrier() {
    for (const Fiber& fiber : fibers)
        if (fiber.state != Fiber::at_barrier) return false;
    for (Fiber& fiber : fibers) fiber.state = Fiber::ready;
    return true;
}

static void run_together(Kernel kernel, const Thread& first, u32 threads) {
    current = kernel;
    fibers.resize(threads);
    while (stacks.size() < threads) stacks.emplace_back(stack_bytes);
    for (u32 i = 0; i < threads; ++i) {
        Fiber& fiber = fibers[i];
        fiber.thread = first, fiber.thread.tid_x = i, fiber.state = Fiber::ready;
        getcontext(&fiber.context);
        fiber.context.uc_stack.ss_sp = stacks[i].data();
        fiber.context.uc_stack.ss_size = stack_bytes;
        fiber.context.uc_link = &scheduler;
        makecontext(&fiber.context, reinterpret_cast<void (*)()>(run_fiber), 1, static_cast<int>(i));
    }
    for (bool backwards = false;; backwards = !backwards) {
        u32 ran = 0, left = 0;
        for (u32 i = 0; i < threads; ++i) {
            running = backwards ? threads - 1 - i : i;
            if (fibers[running].state != Fiber::ready) continue;
            swapcontext(&scheduler, &fibers[running].context);
            ++ran;
        }
        bool opened = open_barrier();
        for (u32 i = 0; i + warp <= threads; i += warp) opened |= open_shuffle(i);
        for (const Fiber& fiber : fibers) left += fiber.state != Fiber::ended;
        if (!left) return;
        if (!opened && !ran) return fault("threads wait for each other", first.ctaid_x, fibers[running].line);
    }
}

// Nothing of a block before is left in shared memory, nor anything that a kernel could take for a value.
static void poison(u8* shared) {
    for (int i = 0; i < shared_bytes; ++i) shared[i] = static_cast<u8>(0xef ^ i * 37);
}

static const Entry* entry_of(const char* name);

extern "C" {
void allow(u64 first, u64 end) { allowed.push_back({first, end}); }

// What was wrong since it was last asked, a line each; *about: what ran
const char* report(Counts* about) {
    static std::string text;
    text.clear();
    for (const std::string& one : faults) text += one + "\n";
    faults.clear();
    *about = counts;
    counts = {};
    return text.c_str();
}

int launch(const char* name, u32 grid_x, u32 grid_y, u32 threads, const u64* arguments) {
    const Entry* entry = entry_of(name);
    if (!entry) return 0;
    alignas(256) static u8 shared[shared_bytes];
    for (u32 y = 0; y < grid_y; ++y)
        for (u32 x = 0; x < grid_x; ++x) {
            Thread thread{0, threads, x, y, grid_x, arguments, shared};
            if (entry->meets) {
                poison(shared);
                run_together(entry->kernel, thread, threads);
            } else {
                for (thread.tid_x = 0; thread.tid_x < threads; ++thread.tid_x) entry->kernel(thread);
            }
        }
    allowed.clear();
    return 1;
}
}
