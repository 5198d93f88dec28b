// Fast prefill attention on the CPU: tiles of queries against runs of blocks, each page unpacked once per tile.
//
// Sealed pages are expanded into the float32 tile: on a CPU 2:4 saves memory traffic, which decode lives on, but no
// multiplication; per tile of 128 queries the expansion is about 1 % of the work.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "rarefy/attention/attention_cpu_prefill.cpp"
#include "hwy/foreach_target.h"
// foreach_target.h comes first
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

#include "hwy/highway.h"
#include "rarefy/attention/attention_cpu.h"
#include "rarefy/attention/prefill_tiles-inl.h"
#include "rarefy/attention/simd-inl.h"

#ifndef RAREFY_ATTENTION_PREFILL_ITEM
#define RAREFY_ATTENTION_PREFILL_ITEM
namespace rarefy::attention {

/// Consecutive queries of one window tile, for one KV head.
struct PrefillItem {
  int sequence = 0;
  int kv_head = 0;
  std::int64_t first_row = 0;  // of q and o: the chunk's first query
  std::int64_t q_len = 0;      // of the chunk
  std::int64_t begin = 0;      // queries begin .. end - 1 of the chunk
  std::int64_t end = 0;
};

inline constexpr int kRunBlocks = 2;   // blocks whose scores are computed before the softmax
inline constexpr int kStripRows = 24;  // rows (query, head of the group) that share panels in L1; a multiple of 6
inline constexpr int kRunTokens = kRunBlocks * kBlock;

/// Floats of scratch for an item of `rows` rows.
constexpr std::int64_t prefill_scratch(std::int64_t rows, int head_dim) {
  const std::int64_t padded = (rows + kStripRows - 1) / kStripRows * kStripRows;
  return padded * (2 * head_dim + 32) + kStripRows * kRunTokens + 2 * kRunTokens * head_dim;
}

}  // namespace rarefy::attention
#endif

HWY_BEFORE_NAMESPACE();
namespace rarefy::attention::HWY_NAMESPACE {

#if HWY_TARGET == HWY_SCALAR  // no vectors at all: the plain loops are as good

void prefill_item(const Params& params, const PrefillItem& item, float*) {
  for (std::int64_t i = item.begin; i < item.end; ++i) {
    const Row row = prefill_row(params, item.sequence, item.first_row, item.q_len, i);
    for (int h = item.kv_head * params.group; h < (item.kv_head + 1) * params.group; ++h) {
      const std::int64_t head = row.index * params.q_heads + h;
      attend_plain(params, row, h, 0, blocks_for(row.keys), params.o + head * params.view.head_dim,
                   params.lse != nullptr ? params.lse + head : nullptr);
    }
  }
}

#else

// The state of an item's rows and its tiles, all in scratch.
struct PrefillState {
  float* q;       // [padded, head_dim], times scale * log2(e): scores are exponents of two
  float* o;       // [padded, head_dim]
  float* sum;     // [padded, kLanes] of p, one partial sum per lane
  float* max;     // [padded]
  float* scores;  // [kStripRows, kRunTokens]
  float* keys;    // [kRunBlocks] blocks as panels of tokens
  float* values;  // kRunTokens rows as panels of channels
};

// Turns one row's scores into p, of `tokens` tokens of which `width` (whole vectors) were computed.
HWY_INLINE void softmax_row(float* scores, int tokens, int width, float* max, float* sum, float* o, int head_dim) {
  const F32 d;
  constexpr float kNone = -std::numeric_limits<float>::infinity();
  for (int t = tokens; t < width; ++t) scores[t] = kNone;
  VF row_max = hn::Load(d, scores);
  for (int t = kLanes; t < width; t += kLanes) row_max = hn::Max(row_max, hn::Load(d, scores + t));
  const float new_max = std::max(*max, hn::GetLane(hn::MaxOfLanes(d, row_max)));
  const VF base = hn::Set(d, new_max == kNone ? 0.0f : new_max);
  VF row_sum = hn::Load(d, sum);
  if (new_max > *max) {
    const VF factor = exp2(hn::Sub(hn::Set(d, *max), base));
    row_sum = hn::Mul(row_sum, factor);
    for (int c = 0; c < head_dim; c += kLanes) hn::Store(hn::Mul(hn::Load(d, o + c), factor), d, o + c);
    *max = new_max;
  }
  for (int t = 0; t < width; t += kLanes) {
    const VF p = exp2(hn::Sub(hn::Load(d, scores + t), base));
    row_sum = hn::Add(row_sum, p);
    hn::Store(p, d, scores + t);
  }
  hn::Store(row_sum, d, sum);
}

// How many of the run's tokens row `row` of the item may see.
HWY_INLINE int visible(const PrefillItem& item, int group, std::int64_t kv_len, std::int64_t row, std::int64_t start) {
  const std::int64_t query = std::min(item.begin + row / group, item.end - 1);
  return static_cast<int>(std::clamp<std::int64_t>(kv_len - item.q_len + query + 1 - start, 0, kRunTokens));
}

template <int kHeadDim>
void strip_step(const PrefillItem& item, int group, std::int64_t kv_len, std::int64_t start, std::int64_t strip,
                const PrefillState& state) {
  int tokens[kStripRows];
  for (int r = 0; r < kStripRows; ++r) tokens[r] = visible(item, group, kv_len, strip + r, start);
  const int most = tokens[kStripRows - 1];  // rows ascend with their queries
  if (most == 0) return;
  const int width = (most + kPanel - 1) / kPanel * kPanel;
  const float* q = state.q + strip * kHeadDim;
  float* o = state.o + strip * kHeadDim;
  for (int t = 0; t < width; t += kPanel)
    for (int r = 0; r < kStripRows; r += kTileRows)
      multiply_tile<false>(kHeadDim, q + r * kHeadDim, kHeadDim, state.keys + t * kHeadDim,
                           state.scores + r * kRunTokens + t, kRunTokens);
  for (int r = 0; r < kStripRows; ++r)
    softmax_row(state.scores + r * kRunTokens, tokens[r], width, state.max + strip + r,
                state.sum + (strip + r) * kLanes, o + r * kHeadDim, kHeadDim);
  for (int c = 0; c < kHeadDim; c += kPanel)
    for (int r = 0; r < kStripRows; r += kTileRows)
      multiply_tile<true>(most, state.scores + r * kRunTokens, kRunTokens, state.values + c * kRunTokens,
                          o + r * kHeadDim + c, kHeadDim);
}

template <int kHeadDim>
PrefillState start_item(const Params& params, const PrefillItem& item, std::int64_t padded, float* scratch) {
  PrefillState state;
  state.q = scratch;
  state.o = state.q + padded * kHeadDim;
  state.sum = state.o + padded * kHeadDim;
  state.max = state.sum + padded * 16;
  state.scores = state.max + padded * 16;
  state.keys = state.scores + kStripRows * kRunTokens;
  state.values = state.keys + kRunTokens * kHeadDim;
  const std::int64_t rows = (item.end - item.begin) * params.group;
  const float scale = params.scale * std::numbers::log2e_v<float>;
  for (std::int64_t r = 0; r < padded; ++r) {
    const std::int64_t query = item.first_row + item.begin + r / params.group;
    const float* from = params.q + (query * params.q_heads + item.kv_head * params.group + r % params.group) * kHeadDim;
    for (int c = 0; c < kHeadDim; ++c) state.q[r * kHeadDim + c] = r < rows ? from[c] * scale : 0.0f;
  }
  std::fill_n(state.o, padded * kHeadDim, 0.0f);
  std::fill_n(state.sum, padded * kLanes, 0.0f);
  std::fill_n(state.max, padded, -std::numeric_limits<float>::infinity());
  return state;
}

template <int kHeadDim>
void finish_item(const Params& params, const PrefillItem& item, const PrefillState& state) {
  const F32 d;
  const std::int64_t rows = (item.end - item.begin) * params.group;
  for (std::int64_t r = 0; r < rows; ++r) {
    const std::int64_t query = item.first_row + item.begin + r / params.group;
    const std::int64_t head = query * params.q_heads + item.kv_head * params.group + r % params.group;
    const float sum = hn::GetLane(hn::SumOfLanes(d, hn::Load(d, state.sum + r * kLanes)));
    const float inverse = sum == 0 ? 0.0f : 1.0f / sum;
    for (int c = 0; c < kHeadDim; ++c) params.o[head * kHeadDim + c] = state.o[r * kHeadDim + c] * inverse;
    if (params.lse != nullptr)
      params.lse[head] = sum == 0 ? -std::numeric_limits<float>::infinity()
                                  : state.max[r] * std::numbers::ln2_v<float> + std::log(sum);
  }
}

template <typename T16, int kHeadDim>
void prefill_queries(const Params& params, const PrefillItem& item, float* scratch) {
  const KvView& view = params.view;
  const std::int64_t rows = (item.end - item.begin) * params.group;
  const std::int64_t padded = (rows + kStripRows - 1) / kStripRows * kStripRows;
  const PrefillState state = start_item<kHeadDim>(params, item, padded, scratch);
  const std::int64_t map_row = view.row(item.sequence, item.kv_head), kv_len = view.kv_len[item.sequence];
  // The last query sees the most keys; all queries of an item are of one window tile.
  const Row last = prefill_row(params, item.sequence, item.first_row, item.q_len, item.end - 1);
  for (std::int64_t start = 0; start < last.keys; start += kRunTokens) {
    for (int i = 0; i < kRunBlocks; ++i) {
      const std::int64_t block = start / kBlock + i;
      const int tokens = tokens_before(block, last.keys);
      if (tokens == 0) break;
      const BlockPages pages = pages_of(view, map_row, block, last.window_start);
      unpack_keys<T16, kHeadDim>(pages.k, state.keys + i * kBlock * kHeadDim);
      unpack_values<T16, kHeadDim>(pages.v, tokens, i * kBlock, kRunTokens, state.values);
    }
    for (std::int64_t strip = 0; strip < padded; strip += kStripRows)
      strip_step<kHeadDim>(item, params.group, kv_len, start, strip, state);
  }
  finish_item<kHeadDim>(params, item, state);
}

void prefill_item(const Params& params, const PrefillItem& item, float* scratch) {
  const bool half = params.view.dtype == DType::F16;
  if (params.view.head_dim == 64)
    half ? prefill_queries<hwy::float16_t, 64>(params, item, scratch)
         : prefill_queries<hwy::bfloat16_t, 64>(params, item, scratch);
  else
    half ? prefill_queries<hwy::float16_t, 128>(params, item, scratch)
         : prefill_queries<hwy::bfloat16_t, 128>(params, item, scratch);
}

#endif  // HWY_SCALAR

}  // namespace rarefy::attention::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace rarefy::attention {
HWY_EXPORT(prefill_item);

namespace {

// Queries of an item: as many as share a window tile, fewer for wide groups (the rows' state should stay in L2) and
// for many threads. Results do not depend on it: a row's arithmetic is the same in every item.
int queries_per_item(const Params& params, std::int64_t total_q, int threads) {
  int queries = kWindowTile;
  while (queries > 16 && (queries * params.group > 512 ||
                          (total_q + queries - 1) / queries * params.view.kv_heads < std::int64_t{4} * threads))
    queries /= 2;
  return queries;
}

}  // namespace

void prefill_fast(const Params& params, std::span<const std::int32_t> q_start, Workspace& workspace) {
  const KvView& view = params.view;
  const int threads = omp_get_max_threads();
  const int queries = queries_per_item(params, q_start.back(), threads);
  const std::int64_t per_thread = (prefill_scratch(std::int64_t{queries} * params.group, view.head_dim) + 15) / 16 * 16;
  float* scratch = workspace.reserve_as<float>(threads * per_thread);
  const auto run = HWY_DYNAMIC_DISPATCH(prefill_item);

  for (int b = 0; b < view.batch; ++b) {
    const std::int64_t first = q_start[b], q_len = q_start[b + 1] - first;
    const std::int64_t items = (q_len + queries - 1) / queries * view.kv_heads;
    // The last queries see the most keys: they go first, so that no thread ends late.
#pragma omp parallel for schedule(dynamic, 1) if (items > 1)
    for (std::int64_t i = items - 1; i >= 0; --i) {
      const std::int64_t begin = i / view.kv_heads * queries;
      const PrefillItem item{b,     static_cast<int>(i % view.kv_heads), first, q_len,
                             begin, std::min(begin + queries, q_len)};
      run(params, item, scratch + omp_get_thread_num() * per_thread);
    }
  }
}

}  // namespace rarefy::attention
#endif
