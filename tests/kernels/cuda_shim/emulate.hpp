// Runs CUDA C kernels on the host, for tests: the threads of a block are fibers that take turns between barriers, and
// blocks run one after another. Included before a kernel's unchanged source, compiled as C++20.
//
// It proves indexing, barriers, bounds, alignment and arithmetic. It can't show races between blocks, the memory model,
// nor anything about speed.
#include <cstdio>
#include <cstdlib>
#include <ucontext.h>
#include <utility>
#include <vector>

#define __global__
#define __device__
#define __forceinline__ inline
#define __shared__ static
#define __launch_bounds__(threads)

struct alignas(16) float4 {
    float x, y, z, w;
};
struct Index {
    unsigned x, y, z;
};
static Index threadIdx, blockIdx, blockDim, gridDim;

template <class T> static T __ldcg(const T *pointer) { return *pointer; }

namespace emulate {
struct Fiber {
    ucontext_t context;
    Index thread;
    bool done, waiting;
};
constexpr std::size_t stack_bytes = 1 << 16;
static std::vector<Fiber> fibers;
static std::vector<char> stacks;
static ucontext_t scheduler;
static Fiber *current;
static void (*kernel)(void **);
static void **arguments;

static void body()
{
    kernel(arguments);
    current->done = true;
}

static void barrier()
{
    current->waiting = true;
    swapcontext(&current->context, &scheduler);
}

// Runs every fiber to its next barrier or its end. 0: all ended; 1: all wait; -1: some wait and some ended.
static int turn(bool backwards)
{
    std::size_t waiting = 0;
    for (std::size_t each = 0; each < fibers.size(); ++each) {
        current = &fibers[backwards ? fibers.size() - 1 - each : each];
        if (current->done)
            continue;
        current->waiting = false;
        threadIdx = current->thread;
        swapcontext(&scheduler, &current->context);
        waiting += current->waiting;
    }
    return waiting == 0 ? 0 : waiting == fibers.size() ? 1 : -1;
}

static int run_block(bool backwards)
{
    fibers.resize(blockDim.x * blockDim.y * blockDim.z);
    stacks.resize(fibers.size() * stack_bytes);
    for (std::size_t each = 0; each < fibers.size(); ++each) {
        Fiber &fiber = fibers[each];
        getcontext(&fiber.context);
        fiber.context.uc_stack.ss_sp = stacks.data() + each * stack_bytes;
        fiber.context.uc_stack.ss_size = stack_bytes;
        fiber.context.uc_link = &scheduler;
        fiber.done = fiber.waiting = false;
        fiber.thread = {unsigned(each % blockDim.x), unsigned(each / blockDim.x % blockDim.y),
                        unsigned(each / blockDim.x / blockDim.y)};
        makecontext(&fiber.context, body, 0);
    }
    int state;
    while ((state = turn(backwards)) == 1) {
    }
    return state;
}

template <class... Types, std::size_t... At>
static void unpack(void (*function)(Types...), void **from, std::index_sequence<At...>)
{
    function(*static_cast<Types *>(from[At])...);
}

template <class... Types> static void call(void (*function)(Types...), void **from)
{
    unpack(function, from, std::index_sequence_for<Types...>{});
}
} // namespace emulate

#define __syncthreads() emulate::barrier()

// A kernel's arguments arrive as cuLaunchKernel takes them: an array of pointers to the values.
#define EMULATED(name)                                                                                                 \
    extern "C" void emulated_##name(void **from) { emulate::call(name, from); }

// Runs the blocks from `first` on. 0, or -1 where a barrier is not reached by all threads of a block.
extern "C" int emulate_launch(void (*kernel)(void **), const unsigned *grid, const unsigned *block, void **arguments,
                              const unsigned *first, int backwards)
{
    emulate::kernel = kernel;
    emulate::arguments = arguments;
    gridDim = {grid[0], grid[1], grid[2]};
    blockDim = {block[0], block[1], block[2]};
    for (unsigned z = first[2]; z < gridDim.z; ++z)
        for (unsigned y = first[1]; y < gridDim.y; ++y)
            for (unsigned x = first[0]; x < gridDim.x; ++x) {
                blockIdx = {x, y, z};
                if (emulate::run_block(backwards) != 0)
                    return -1;
            }
    return 0;
}
