// Copies between pools of blocks: memory alone, so one build of it serves every instruction set.
#include <algorithm>
#include <cstring>

#include "headrace.h"

extern "C" {

void hr_copy_blocks(const hr_copy_blocks_args* args) {
  const char* const source = static_cast<const char*>(args->source);
  char* const target = static_cast<char*>(args->target);
  int64_t offset = args->offset;
  int64_t num_left = args->num_bytes;
  for (int64_t i = 0; num_left > 0; ++i) {
    const int64_t num_bytes = std::min(args->piece_bytes - offset, num_left);
    std::memcpy(target + args->target_ids[i] * args->target_stride + offset,
                source + args->source_ids[i] * args->source_stride + offset, static_cast<size_t>(num_bytes));
    num_left -= num_bytes;
    offset = 0;
  }
}

size_t hr_copy_blocks_args_size(void) { return sizeof(hr_copy_blocks_args); }

}  // extern "C"
