// The C ABI: picks the instruction set once, and forwards each operation to its table.
#include <cstring>
#include <new>
#include <system_error>

#include "context.h"

namespace {

struct InstructionSet {
  const char* name;
  const hr::Operations* operations;
  bool (*is_supported)();
};

#if defined(__x86_64__)
// Every processor with AVX2 has F16C, which not every compiler can be asked for (clang 14 cannot).
bool has_avx2() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }
bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vnni");
}
bool has_avx512bf16() { return has_avx512() && __builtin_cpu_supports("avx512bf16"); }
#endif
bool always() { return true; }

// Best first.
const InstructionSet kInstructionSets[] = {
#if defined(__x86_64__)
    {"avx512bf16", &hr::avx512bf16::operations, has_avx512bf16},
    {"avx512", &hr::avx512::operations, has_avx512},
    {"avx2", &hr::avx2::operations, has_avx2},
#elif defined(__aarch64__)
    {"neon", &hr::neon::operations, always},
#endif
    {"generic", &hr::generic::operations, always},
};

const InstructionSet* find(const char* name) {
  const bool any = name == nullptr || *name == '\0';
  for (const InstructionSet& set : kInstructionSets) {
    if ((any || std::strcmp(set.name, name) == 0) && set.is_supported()) return &set;
  }
  return nullptr;
}

}  // namespace

extern "C" {

hr_context* hr_context_create(const char* isa, int32_t num_threads) {
  const InstructionSet* const set = find(isa);
  if (set == nullptr) return nullptr;
  try {
    hr_context* const context = new hr_context(num_threads < 1 ? 1 : num_threads);
    context->operations = set->operations;
    context->isa = set->name;
    return context;
  } catch (const std::bad_alloc&) {
    return nullptr;
  } catch (const std::system_error&) {  // no more threads
    return nullptr;
  }
}

void hr_context_destroy(hr_context* context) { delete context; }

int32_t hr_isa_is_supported(const char* isa) { return find(isa) != nullptr; }

const char* hr_context_isa(const hr_context* context) { return context->isa; }

int32_t hr_context_num_threads(const hr_context* context) { return context->context.pool.num_threads(); }

int64_t hr_context_scratch_bytes(const hr_context* context) { return context->context.scratch.num_bytes(); }

#define HR_DEFINE(name)                                                 \
  int hr_##name(hr_context* context, const hr_##name##_args* args) {    \
    const std::lock_guard<std::mutex> lock(context->mutex);             \
    try {                                                               \
      context->context.status = HR_OK;                                  \
      context->operations->name(context->context, *args);               \
      return context->context.status;                                   \
    } catch (const std::bad_alloc&) {                                   \
      return HR_OUT_OF_MEMORY;                                          \
    }                                                                   \
  }                                                                     \
  size_t hr_##name##_args_size(void) { return sizeof(hr_##name##_args); }
HR_OPERATIONS(HR_DEFINE)

}  // extern "C"
