// What every operation is given: the threads, scratch memory, and the table of the chosen instruction set.
#ifndef HEADRACE_CONTEXT_H
#define HEADRACE_CONTEXT_H

#include <cstdlib>
#include <mutex>
#include <new>

#include "headrace.h"
#include "pool.h"

namespace hr {

// Who uses which scratch memory: an operation that calls another must not share a slot with it.
enum ScratchSlot {
  kScratchLinear,     // dense.inc: rows converted to the form that the product takes
  kScratchGate,       // linear.inc: gate and up before they are one
  kScratchQuant,      // quant.inc: rows quantised
  kScratchAttention,  // attention.inc: partial results
  kScratchSampling,
  kScratchLayer,      // layer.inc: activations between the operations of a layer
  kScratchStep,       // decoder.inc: what all layers of a step share
  kScratchPlan,       // decoder.inc: how its attention is cut
  kNumScratchSlots
};

class Scratch {
 public:
  Scratch() = default;
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  ~Scratch() {
    for (Buffer& buffer : buffers_) std::free(buffer.data);
  }

  // At least num_bytes, aligned to 64, contents undefined; valid until the slot is asked for again.
  // Throws std::bad_alloc.
  void* bytes(ScratchSlot slot, int64_t num_bytes) {
    Buffer& buffer = buffers_[slot];
    if (buffer.num_bytes < num_bytes) {
      std::free(buffer.data);
      buffer = Buffer{};
      const size_t rounded = (static_cast<size_t>(num_bytes) + 4095) & ~size_t{4095};
      buffer.data = std::aligned_alloc(64, rounded);
      if (buffer.data == nullptr) throw std::bad_alloc();
      buffer.num_bytes = static_cast<int64_t>(rounded);
    }
    return buffer.data;
  }

  int64_t num_bytes() const {
    int64_t total = 0;
    for (const Buffer& buffer : buffers_) total += buffer.num_bytes;
    return total;
  }

 private:
  struct Buffer {
    void* data = nullptr;
    int64_t num_bytes = 0;
  };
  Buffer buffers_[kNumScratchSlots];
};

// The decoder's step that is computed in several calls.
struct OpenStep {
  const void* out = nullptr;  // where its result will go; null: there is none
  int64_t next_layer = 0;
};

struct Context {
  explicit Context(int num_threads) : pool(num_threads) {}
  Pool pool;
  Scratch scratch;
  OpenStep open_step;
  int status = HR_OK;  // of the operation that runs
};

// One instruction set's implementation of every operation.
struct Operations {
#define HR_MEMBER(name) void (*name)(Context&, const hr_##name##_args&);
  HR_OPERATIONS(HR_MEMBER)
#undef HR_MEMBER
};

#if defined(__x86_64__)
namespace avx512bf16 { extern const Operations operations; }
namespace avx512 { extern const Operations operations; }
namespace avx2 { extern const Operations operations; }
#elif defined(__aarch64__)
namespace neon { extern const Operations operations; }
#endif
namespace generic { extern const Operations operations; }

}  // namespace hr

struct hr_context {
  explicit hr_context(int num_threads) : context(num_threads) {}
  std::mutex mutex;  // one operation at a time
  hr::Context context;
  const hr::Operations* operations = nullptr;
  const char* isa = "";
};

#endif
