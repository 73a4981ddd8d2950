// The C ABI of the native kernels: the only thing that Python sees (kernels/native_library.py, kernels/native/*.py).
//
// Conventions
// - Every operation X is `int hr_X(hr_context*, const hr_X_args*)`: an hr_status. HR_OUT_OF_MEMORY: no scratch memory.
//   Arguments are checked in Python, where there is something to say; here they are trusted, unless HR_OUT_OF_RANGE is
//   named.
// - Arguments are one plain struct: pointers (never kept after the call), counts and strides as int64_t, options as
//   int32_t. Strides are in elements unless the name says bytes. Python mirrors the struct field by field
//   (ctypes.Structure); hr_X_args_size() is compared with it when the operation is first called.
// - Activations are float32, bfloat16 or float16 (hr_dtype); sums are float32. Vectors (norm weights, biases) are
//   float32 always.
// - The result of a row depends on that row alone, to the bit: never on the number of rows, of threads, or on which
//   thread computed it.
// - No access outside what the arguments name: tails are loaded and stored by count.
//
// How to add an operation
// 1. Here: `typedef struct { ... } hr_X_args;` and a line HR_OPERATION(X) in HR_OPERATIONS.
// 2. In a *.inc file (listed in kernels.inc): `void X(Context& context, const hr_X_args& args)`. It is compiled once for
//    each instruction set, in a namespace of its own, with vector.inc (vectors of HR_LANES floats, loads and stores of
//    every activation dtype, exp and tanh) at hand. HR_AVX512, HR_AVX2, HR_NEON say what intrinsics may be used;
//    without any of them write plain loops or vector.inc. Work is shared out by context.pool.run(num_tasks, body);
//    memory for intermediate results is context.scratch.bytes(slot, num_bytes).
//    A *.inc file includes nothing and calls no function template of the standard library: what the linker merges
//    across translation units must not hold instructions that the processor may lack.
// 3. In kernels/native/: the struct's mirror (a subclass of Arguments), and a function that checks shapes and types and
//    calls library.call(arguments).
// 4. Its definition in kernels/reference.py, and a test over every instruction set that this machine has.
#ifndef HEADRACE_H
#define HEADRACE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct hr_context hr_context;

enum hr_status { HR_OK = 0, HR_OUT_OF_MEMORY = 1, HR_OUT_OF_RANGE = 2 };

enum hr_dtype { HR_FLOAT32 = 0, HR_BFLOAT16 = 1, HR_FLOAT16 = 2 };

// How a weight matrix lies in memory; the first three are dense, in tiles of 16 rows (dense.inc), the others quant.inc's.
enum hr_format {
  HR_FORMAT_FLOAT32 = 0,
  HR_FORMAT_BFLOAT16 = 1,
  HR_FORMAT_FLOAT16 = 2,
  HR_FORMAT_Q8_0 = 8,
  HR_FORMAT_Q4_0 = 9,
  HR_FORMAT_Q4_1 = 10,
  HR_FORMAT_Q5_0 = 11,
  HR_FORMAT_Q5_1 = 12,
  HR_FORMAT_Q4_K = 13,
  HR_FORMAT_Q5_K = 14,
  HR_FORMAT_Q6_K = 15
};

// Instruction sets by name: "avx512bf16", "avx512", "avx2", "neon", "generic"; best first.
// NULL or "" for the best. Returns NULL if this processor or this build has not got it, or memory is short.
// num_threads counts the caller: 1 makes no thread.
hr_context* hr_context_create(const char* isa, int32_t num_threads);
void hr_context_destroy(hr_context*);
int32_t hr_isa_is_supported(const char* isa);
const char* hr_context_isa(const hr_context*);
int32_t hr_context_num_threads(const hr_context*);
// Memory that operations have taken for intermediate results so far; it only grows.
int64_t hr_context_scratch_bytes(const hr_context*);

// hidden += delta (or its normalised form, see post_weight); out = hidden / rms(hidden) * weight.
typedef struct {
  float* hidden;       // [num_rows, width], changed in place where delta is given
  int64_t hidden_stride;
  const void* delta;   // [num_rows, width] of delta_dtype, or NULL
  int64_t delta_stride;
  const float* post_weight;  // [width] or NULL: delta is normalised with it before it is added (Gemma 2, 3)
  const float* weight;       // [width]
  void* out;           // [num_rows, width] of out_dtype, or NULL: only add
  int64_t out_stride;
  int64_t num_rows;
  int64_t width;
  float eps;
  int32_t delta_dtype;
  int32_t out_dtype;
} hr_add_rms_norm_args;

// From the fused projection: queries, normalised and rotated; keys likewise and values, into the cache.
typedef struct {
  const void* qkv;     // [num_tokens, (num_heads + 2 * num_kv_heads) * head_dim] of qkv_dtype
  int64_t qkv_stride;
  void* query;         // [num_tokens, num_heads * head_dim] of dtype
  int64_t query_stride;
  const float* cos;    // [num_tokens, rotary_dim / 2], contiguous
  const float* sin;
  const float* query_norm;  // [head_dim] or NULL: RMS norm of each query head (Qwen 3, Gemma 3)
  const float* key_norm;
  void* cache;         // one layer's [blocks, 2, block_size, num_kv_heads, head_dim] of dtype, strides in elements
  const int64_t* slots;  // [num_tokens] block * block_size + offset; -1: nothing is written
  int64_t block_stride;
  int64_t value_offset;
  int64_t slot_stride;
  int64_t head_stride;
  int64_t num_tokens;
  int64_t num_heads;
  int64_t num_kv_heads;
  int64_t head_dim;
  int64_t rotary_dim;  // even; the rest of a head is not rotated
  int64_t block_size;
  float norm_eps;
  int32_t qkv_dtype;
  int32_t dtype;
} hr_rope_write_kv_args;

enum hr_activation { HR_SILU = 0, HR_GELU_TANH = 1 };

// out = activation(gate) * up.
typedef struct {
  const void* gate_up;  // [num_rows, 2 * width] of gate_up_dtype, gate first
  int64_t gate_up_stride;
  void* out;            // [num_rows, width] of out_dtype
  int64_t out_stride;
  int64_t num_rows;
  int64_t width;
  int32_t gate_up_dtype;
  int32_t out_dtype;
  int32_t activation;   // hr_activation
} hr_gate_args;

// out[i] = row rows[i] of a matrix, times scale.
typedef struct {
  const void* weight;   // as in hr_linear_args
  const int64_t* rows;  // [num_rows]
  float* out;           // [num_rows, in_features]
  int64_t out_stride;
  int64_t num_rows;
  int64_t in_features;
  float scale;
  int32_t format;
} hr_gather_args;

// out = x @ weight^T + bias, or out += that. The layout of `weight` is its format's: dense.inc, quant.inc.
typedef struct {
  const void* x;       // [num_rows, in_features] of x_dtype
  int64_t x_stride;
  const void* weight;  // out_features rows, in tiles of 16; the last one is filled up
  const float* bias;   // [out_features] or NULL
  void* out;           // [num_rows, out_features] of out_dtype
  int64_t out_stride;
  int64_t num_rows;
  int64_t in_features;
  int64_t out_features;
  int32_t x_dtype;
  int32_t out_dtype;
  int32_t format;      // hr_format
  int32_t accumulate;  // not 0: out += (float32 out only)
} hr_linear_args;

// out = activation(x @ gate^T + gate_bias) * (x @ up^T + up_bias).
typedef struct {
  const void* x;       // [num_rows, in_features] of x_dtype
  int64_t x_stride;
  const void* gate;    // out_features rows, as in hr_linear_args
  const void* up;
  const float* gate_bias;  // [out_features] or NULL
  const float* up_bias;
  void* out;           // [num_rows, out_features] of out_dtype
  int64_t out_stride;
  int64_t num_rows;
  int64_t in_features;
  int64_t out_features;
  int32_t x_dtype;
  int32_t out_dtype;
  int32_t gate_format;  // hr_format
  int32_t up_format;
  int32_t activation;   // hr_activation
} hr_gated_linear_args;

// Rows of a quantised matrix from the blocks of a GGUF file into tiles (quant_formats.inc); the last tile is filled up.
typedef struct {
  const void* blocks;  // [num_rows] rows of blocks, back to back
  void* out;
  int64_t num_rows;
  int64_t in_features;
  int32_t format;
} hr_pack_args;

// Attention of a step. The cache of a layer is read where it lies: the key of position i of sequence s, head h, is at
//   cache + block_tables[s * table_stride + i / block_size] * block_stride + i % block_size * slot_stride + h * head_stride
// and its value value_offset elements further. No slot at or past a sequence's context is read.

// A part that one thread computes: queries first_query..end_query-1 of a sequence (its tokens of this step, counted from
// 0) with key/value heads first_head..end_head-1 and all query heads that share them, over the keys of splits
// first_split..end_split-1. Split s is the positions from s * HR_ATTENTION_SPLIT on.
enum { HR_ATTENTION_SPLIT = 512 };
typedef struct {
  int32_t sequence;
  int32_t first_head;
  int32_t end_head;
  int32_t first_query;
  int32_t end_query;
  int32_t first_split;
  int32_t end_split;
  int32_t first_partial;  // where the results of its first split go, to be merged with others; -1: it has all splits
} hr_attention_task;

// Sizes of what hr_plan_attention made.
typedef struct {
  int64_t num_tasks;
  int64_t num_merges;
  int64_t num_partials;   // results of a split for a row
  int64_t max_task_rows;  // queries times query heads of the largest task
} hr_attention_plan;

// Cut a step into tasks for the threads of the context; the same for all layers of equal window.
typedef struct {
  const int32_t* query_starts;  // [num_sequences + 1] first token of each sequence; last: number of tokens
  const int32_t* context_lens;  // [num_sequences] tokens after this step
  hr_attention_task* tasks;     // [capacity] filled
  hr_attention_task* merges;    // [capacity] filled
  hr_attention_plan* plan;      // filled; where a number exceeds the capacity, both lists are useless: call again
  int64_t num_sequences;
  int64_t capacity;
  int64_t num_heads;
  int64_t num_kv_heads;
  int64_t sliding_window;       // last positions that a query sees, itself included; 0: all
} hr_plan_attention_args;

// out = softmax(cap(scale * query . keys)) @ values, causal.
typedef struct {
  const void* query;            // [num_tokens, num_heads, head_dim] of dtype, heads adjacent
  void* out;                    // likewise
  const void* cache;            // of one layer, of dtype
  const int32_t* block_tables;  // [num_sequences, table_stride]
  const int32_t* query_starts;
  const int32_t* context_lens;
  const hr_attention_task* tasks;
  const hr_attention_task* merges;
  const hr_attention_plan* plan;
  int64_t query_stride;         // of a token
  int64_t out_stride;
  int64_t block_stride;
  int64_t value_offset;
  int64_t slot_stride;
  int64_t head_stride;
  int64_t table_stride;
  int64_t num_heads;
  int64_t num_kv_heads;
  int64_t head_dim;
  int64_t block_size;
  int64_t sliding_window;       // that of the plan
  float scale;                  // above 0
  float soft_cap;               // cap(x) = soft_cap * tanh(x / soft_cap); 0: none
  int32_t dtype;
} hr_attend_args;

// One matrix of a layer.
typedef struct {
  const void* weight;  // as in hr_linear_args
  const float* bias;   // [out_features] or NULL
  int64_t out_features;
  int64_t format;      // hr_format
} hr_matrix;

// A decoder layer, made once; only the matrices' addresses change where weights are streamed.
typedef struct {
  hr_matrix qkv[3];     // num_qkv of them, whose results lie side by side: query, key and value rows
  hr_matrix output;
  hr_matrix gate;
  hr_matrix up;
  hr_matrix down;
  const float* attention_norm;  // [hidden_size]
  const float* mlp_norm;        // [hidden_size]
  const float* post_attention_norm;  // [hidden_size] or NULL: of what is added to the residual stream (Gemma 2, 3)
  const float* post_mlp_norm;
  const float* query_norm;      // [head_dim] or NULL
  const float* key_norm;
  int64_t num_qkv;
  int64_t hidden_size;
  int64_t intermediate_size;
  int64_t num_heads;
  int64_t num_kv_heads;
  int64_t head_dim;
  float norm_eps;
  float attention_scale;
  float soft_cap;               // 0: none
  int32_t activation;           // hr_activation
  int32_t dtype;                // of activations, keys and values
  int32_t kind;                 // which of the step's hr_layer_kind it is of
} hr_layer;

// What layers of one kind have in common beside their sizes.
typedef struct {
  const float* frequencies;  // [rotary_dim / 2] radians a position
  int64_t rotary_dim;        // even; the rest of a head is not rotated
  int64_t sliding_window;    // last positions that a query sees, itself included; 0: all
  float rotation_scale;      // factor on what is rotated
} hr_layer_kind;

// A step of a decoder: embedding, layers one after the other over a float32 residual stream, final norm. The keys and
// values of its tokens are written into the cache. HR_OUT_OF_RANGE, with nothing done: a token, length, block or slot is.
//
// A step may be computed in several calls, each of the layers first_layer..end_layer-1: the first begins at 0, each
// begins where the one before it ended, the last ends at num_layers; the bits are those of one call. In between the
// context's scratch memory holds the step, and what the arguments point to must stay as it is but for the weights of
// layers to come. HR_OUT_OF_RANGE: a call does not go on where the context's step is, or another step began meanwhile.
typedef struct {
  const hr_layer* layers;        // [num_layers], of one hidden_size, num_heads, num_kv_heads and dtype
  const hr_layer_kind* kinds;    // [num_kinds]
  const void* embedding;         // [vocab_size, hidden_size], as in hr_linear_args
  const float* final_norm;       // [hidden_size]
  int64_t num_layers;
  int64_t num_kinds;
  int64_t vocab_size;
  float embedding_scale;
  int32_t embedding_format;      // hr_format
  // the step
  const int64_t* token_ids;      // [num_tokens], sequences back to back
  const int64_t* positions;      // [num_tokens]
  const int64_t* slots;          // [num_tokens] block * block_size + offset; -1: nothing is written
  const int32_t* query_lens;     // [num_sequences] tokens of each sequence in this step, at least 1
  const int32_t* context_lens;   // [num_sequences] tokens after this step
  const int64_t* block_tables;   // [num_sequences, table_stride]
  void* cache;                   // [num_blocks, num_layers, 2, block_size, num_kv_heads, head_dim] of the layers' dtype
  void* out;                     // [num_tokens, hidden_size] of the layers' dtype
  int64_t num_tokens;
  int64_t num_sequences;
  int64_t table_stride;
  int64_t num_blocks;
  int64_t block_size;
  int64_t block_stride;          // strides in elements, as in hr_rope_write_kv_args
  int64_t layer_stride;
  int64_t value_offset;
  int64_t slot_stride;
  int64_t head_stride;
  int64_t first_layer;           // of this call
  int64_t end_layer;
} hr_decoder_args;

// Sampling. Logits are rows of [vocab_size] float32 and not changed; `rows` names those that are meant, NULL: the first
// num_rows in order. Everything else has one entry for each of num_rows.

// The first largest entry of each row and its value; a NaN counts as the largest.
typedef struct {
  const float* logits;
  int64_t* token_ids;  // filled
  float* peaks;        // filled
  int64_t logits_stride;
  int64_t num_rows;
  int64_t vocab_size;
} hr_argmax_args;

// A token drawn from softmax(logits / temperature) after top_k, min_p and top_p, as kernels/sampling.py defines it: the
// first whose cumulative probability exceeds the uniform number. Rows must hold no NaN and no plus infinity.
typedef struct {
  const float* logits;
  const int64_t* rows;
  const float* peaks;         // largest entry, finite
  const float* temperatures;  // above 0
  const double* uniforms;     // in [0, 1)
  const int64_t* top_k;       // at least 1; vocab_size or more: off. NULL: off for all
  const double* top_p;        // 1: off. NULL: likewise
  const float* log_min_p;     // logarithm of min_p; minus infinity: off. NULL: likewise
  int64_t* token_ids;         // filled
  int64_t logits_stride;
  int64_t num_rows;
  int64_t vocab_size;
} hr_draw_args;

// The log-probability of entry i is logits[i] - peak - log_sum. The num_top most probable, equal ones by their ids; those
// of a row with NaN mean nothing.
typedef struct {
  const float* logits;
  const int64_t* rows;
  float* peaks;         // filled
  float* log_sums;      // filled
  float* top_logprobs;  // [num_rows, num_top] filled
  int64_t* top_ids;     // [num_rows, num_top] filled
  int64_t logits_stride;
  int64_t num_rows;
  int64_t vocab_size;
  int64_t num_top;      // at most vocab_size
} hr_score_args;

// A number in [0, 1) for each (seed, stream, counter): Philox4x32-10.
typedef struct {
  const uint64_t* seeds;
  const uint64_t* streams;   // below 2^32
  const uint64_t* counters;  // below 2^32
  double* out;
  int64_t count;
} hr_uniforms_args;

#define HR_OPERATIONS(HR_OPERATION) \
  HR_OPERATION(add_rms_norm)        \
  HR_OPERATION(rope_write_kv)       \
  HR_OPERATION(gate)                \
  HR_OPERATION(gather)              \
  HR_OPERATION(linear)              \
  HR_OPERATION(gated_linear)        \
  HR_OPERATION(pack)                \
  HR_OPERATION(plan_attention)      \
  HR_OPERATION(attend)              \
  HR_OPERATION(argmax)              \
  HR_OPERATION(draw)                \
  HR_OPERATION(score)               \
  HR_OPERATION(uniforms)            \
  HR_OPERATION(decoder)

#define HR_DECLARE(name)                                     \
  int hr_##name(hr_context*, const hr_##name##_args* args);  \
  size_t hr_##name##_args_size(void);
HR_OPERATIONS(HR_DECLARE)
#undef HR_DECLARE

// Equal pieces of blocks from one pool to another, piece i from block source_ids[i] to block target_ids[i]: num_bytes of
// them, back to back, from byte `offset` of the first piece on. No operation of a context: it may run beside one, on any
// thread, and so does a copier's beside a step. The pools must not overlap.
typedef struct {
  const void* source;         // first byte of the piece of block 0
  void* target;
  const int64_t* source_ids;  // as many as num_bytes touch
  const int64_t* target_ids;
  int64_t source_stride;      // bytes from a block to the next
  int64_t target_stride;
  int64_t piece_bytes;        // at least 1
  int64_t offset;             // 0..piece_bytes-1
  int64_t num_bytes;
} hr_copy_blocks_args;
void hr_copy_blocks(const hr_copy_blocks_args* args);
size_t hr_copy_blocks_args_size(void);

#ifdef __cplusplus
}
#endif
#endif
