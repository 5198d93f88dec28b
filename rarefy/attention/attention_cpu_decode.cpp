// Fast decode attention on the CPU: 16-bit and 2:4 pages read directly, split over blocks, merged by log-sum-exp.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "rarefy/attention/attention_cpu_decode.cpp"
#include "hwy/foreach_target.h"
// foreach_target.h comes first
#include "hwy/highway.h"
#include "rarefy/attention/attention_cpu.h"
#include "rarefy/attention/decode_pages-inl.h"
#include "rarefy/attention/merge.h"
#include "rarefy/attention/simd-inl.h"

#ifndef RAREFY_ATTENTION_DECODE_ITEM
#define RAREFY_ATTENTION_DECODE_ITEM
namespace rarefy::attention {

/// A part of the blocks that one row reads for one KV head, and where its partials go.
struct DecodeItem {
  Row row;
  int kv_head = 0;
  std::int64_t begin = 0;  // positions in the row's block range
  std::int64_t end = 0;
  float* o = nullptr;    // [group, head_dim], normalised
  float* lse = nullptr;  // [group], may be null
};

}  // namespace rarefy::attention
#endif

HWY_BEFORE_NAMESPACE();
namespace rarefy::attention::HWY_NAMESPACE {

#if HWY_TARGET == HWY_SCALAR  // no vectors at all: the plain loops are as good

void decode_item(const Params& params, const DecodeItem& item) {
  for (int g = 0; g < params.group; ++g)
    attend_plain(params, item.row, item.kv_head * params.group + g, item.begin, item.end,
                 item.o + g * params.view.head_dim, item.lse != nullptr ? item.lse + g : nullptr);
}

#else

// Queries whose state lives on the stack while the blocks pass by; a larger group reads its pages again.
inline constexpr int kMaxQueries = 16;

template <int kHeadDim>
struct QueryState {
  alignas(64) float q[kMaxQueries][kHeadDim];  // times scale * log2(e): scores are exponents of two
  alignas(64) float o[kMaxQueries][kHeadDim];
  alignas(64) float sum[kMaxQueries][kLanes];  // of p, one partial sum per lane
  float max[kMaxQueries];
};

// Turns the scores of a block into p and updates maximum and sum of one query; returns the factor of what o holds.
HWY_INLINE float softmax_step(float* scores, int tokens, float* max, float* sum) {
  const F32 d;
  constexpr float kNone = -std::numeric_limits<float>::infinity();
  for (int t = tokens; t < kBlock; ++t) scores[t] = kNone;
  VF block_max = hn::Load(d, scores);
  for (int t = kLanes; t < kBlock; t += kLanes) block_max = hn::Max(block_max, hn::Load(d, scores + t));
  const float new_max = std::max(*max, hn::GetLane(hn::MaxOfLanes(d, block_max)));
  const VF base = hn::Set(d, new_max == kNone ? 0.0f : new_max);
  VF block_sum = hn::Zero(d);
  for (int t = 0; t < kBlock; t += kLanes) {
    const VF p = exp2(hn::Sub(hn::Load(d, scores + t), base));
    block_sum = hn::Add(block_sum, p);
    hn::Store(p, d, scores + t);
  }
  const VF factor = exp2(hn::Sub(hn::Set(d, *max), base));
  hn::Store(hn::MulAdd(hn::Load(d, sum), factor, block_sum), d, sum);
  *max = new_max;
  return hn::GetLane(factor);
}

// One block for kQueries queries.
template <typename T16, int kHeadDim, int kQueries>
HWY_INLINE void block_step(const BlockPages& pages, const SparsePage<kHeadDim>& prepared, int tokens,
                           float (*q)[kHeadDim], float (*o)[kHeadDim], float (*sum)[kLanes], float* max,
                           const Ahead& k_ahead, const Ahead& v_ahead) {
  alignas(64) float scores[kQueries][kBlock];
  float factor[kQueries];
  if (pages.k.sparse)
    sparse_scores<T16, kHeadDim, kQueries>(q, prepared, scores, k_ahead);
  else
    dense_scores<T16, kHeadDim, kQueries>(q, pages.k.data, scores, k_ahead);
  for (int g = 0; g < kQueries; ++g) factor[g] = softmax_step(scores[g], tokens, &max[g], sum[g]);
  if (!pages.v.sparse)
    dense_values<T16, kHeadDim, kQueries>(scores, pages.v.data, tokens, factor, o, v_ahead);
  else if (tokens == kBlock)
    sparse_values<T16, kHeadDim, kQueries, false>(scores, pages.v.data, prepared, factor, o, v_ahead);
  else
    sparse_values<T16, kHeadDim, kQueries, true>(scores, pages.v.data, prepared, factor, o, v_ahead);
}

template <int kHeadDim>
HWY_INLINE Ahead ahead_of(Page page) {
  return {page.data,
          static_cast<int>(page.sparse ? format24::sparse_page_bytes(kHeadDim) : format24::dense_page_bytes(kHeadDim))};
}

template <typename T16, int kHeadDim>
void block_queries(const BlockPages& pages, const SparsePage<kHeadDim>& prepared, int tokens, int queries,
                   QueryState<kHeadDim>& state, const BlockPages& next) {
  for (int g = 0; g < queries;) {
    const auto step = [&]<int kQueries>() HWY_ATTR {
      block_step<T16, kHeadDim, kQueries>(pages, prepared, tokens, state.q + g, state.o + g, state.sum + g,
                                          state.max + g, g == 0 ? ahead_of<kHeadDim>(next.k) : Ahead{},
                                          g == 0 ? ahead_of<kHeadDim>(next.v) : Ahead{});
      g += kQueries;
    };
    // Five queries go as 3 + 2 and six as 3 + 3, not as 4 + 1 and 4 + 2: a lone query pays a whole unpacking.
    const int left = queries - g;
    if (left == 1) {
      step.template operator()<1>();
    } else if (left == 2) {
      step.template operator()<2>();
    } else if (left == 3 || left == 5 || left == 6) {
      step.template operator()<3>();
    } else {
      step.template operator()<4>();
    }
  }
}

template <int kHeadDim>
void finish(const QueryState<kHeadDim>& state, int queries, float* o, float* lse) {
  const F32 d;
  for (int g = 0; g < queries; ++g) {
    const float sum = hn::GetLane(hn::SumOfLanes(d, hn::Load(d, state.sum[g])));
    const float inverse = sum == 0 ? 0.0f : 1.0f / sum;
    for (int c = 0; c < kHeadDim; ++c) o[g * kHeadDim + c] = state.o[g][c] * inverse;
    if (lse != nullptr)
      lse[g] = sum == 0 ? -std::numeric_limits<float>::infinity()
                        : state.max[g] * std::numbers::ln2_v<float> + std::log(sum);
  }
}

template <typename T16, int kHeadDim>
void decode_queries(const Params& params, const DecodeItem& item, int first, int queries) {
  const KvView& view = params.view;
  const std::int64_t map_row = view.row(item.row.sequence, item.kv_head);
  const BlockRange blocks = blocks_of(params, item.row, item.kv_head);

  QueryState<kHeadDim> state;
  for (int g = 0; g < queries; ++g) {
    std::fill_n(state.o[g], kHeadDim, 0.0f);
    std::fill_n(state.sum[g], kLanes, 0.0f);
  }
  std::fill_n(state.max, queries, -std::numeric_limits<float>::infinity());
  const std::int64_t head = item.row.index * params.q_heads + item.kv_head * params.group + first;
  const float scale = params.scale * std::numbers::log2e_v<float>;
  for (int g = 0; g < queries; ++g)
    for (int c = 0; c < kHeadDim; ++c) state.q[g][c] = params.q[(head + g) * kHeadDim + c] * scale;

  SparsePage<kHeadDim> prepared;
  const auto pages_at = [&](std::int64_t i) {
    return i < item.end ? pages_of(view, map_row, blocks[i], item.row.window_start) : BlockPages{};
  };
  BlockPages next = pages_at(item.begin);
  ahead_of<kHeadDim>(next.k).fetch(0, 1);
  ahead_of<kHeadDim>(next.v).fetch(0, 1);
  for (std::int64_t i = item.begin; i < item.end; ++i) {
    const BlockPages pages = next;
    next = pages_at(i + 1);
    const int tokens = tokens_before(blocks[i], item.row.keys);
    if (tokens == 0) continue;
    if (pages.k.sparse) prepare_keys<kHeadDim>(pages.k.data, prepared);
    if (pages.v.sparse) prepare_values<kHeadDim>(pages.v.data, prepared);
    block_queries<T16, kHeadDim>(pages, prepared, tokens, queries, state, next);
  }
  finish(state, queries, item.o + first * kHeadDim, item.lse != nullptr ? item.lse + first : nullptr);
}

template <typename T16, int kHeadDim>
void decode_group(const Params& params, const DecodeItem& item) {
  for (int first = 0; first < params.group; first += kMaxQueries)
    decode_queries<T16, kHeadDim>(params, item, first, std::min(kMaxQueries, params.group - first));
}

void decode_item(const Params& params, const DecodeItem& item) {
  const bool half = params.view.dtype == DType::F16;
  if (params.view.head_dim == 64)
    half ? decode_group<hwy::float16_t, 64>(params, item) : decode_group<hwy::bfloat16_t, 64>(params, item);
  else
    half ? decode_group<hwy::float16_t, 128>(params, item) : decode_group<hwy::bfloat16_t, 128>(params, item);
}

#endif  // HWY_SCALAR

}  // namespace rarefy::attention::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace rarefy::attention {
HWY_EXPORT(decode_item);

namespace {
// Blocks of one work item. Fixed, so that results do not depend on the number of threads; 1024 tokens are about 30 us.
constexpr std::int64_t kSplitBlocks = 16;
}  // namespace

void decode_fast(const Params& params, Workspace& workspace) {
  const KvView& view = params.view;
  const std::int64_t heads = std::int64_t{view.batch} * view.kv_heads;
  std::int64_t most = 0;
  for (int b = 0; b < view.batch; ++b) most = std::max<std::int64_t>(most, blocks_for(view.kv_len[b]));
  if (params.blocks.ids != nullptr) most = std::min<std::int64_t>(most, params.blocks.max_selected);
  const std::int64_t splits = std::max<std::int64_t>((most + kSplitBlocks - 1) / kSplitBlocks, 1);

  const std::int64_t per_part = std::int64_t{params.group} * view.head_dim;
  float* o_parts = workspace.reserve_as<float>(heads * splits * (per_part + params.group));
  float* lse_parts = o_parts + heads * splits * per_part;
  const auto run = HWY_DYNAMIC_DISPATCH(decode_item);

#pragma omp parallel for schedule(dynamic, 1) if (heads * splits > 1)
  for (std::int64_t i = 0; i < heads * splits; ++i) {
    const Row row = decode_row(view, static_cast<int>(i / splits / view.kv_heads));
    DecodeItem item{row, static_cast<int>(i / splits % view.kv_heads)};
    const std::int64_t count = blocks_of(params, row, item.kv_head).count;
    item.begin = std::min(i % splits * kSplitBlocks, count);
    item.end = std::min(item.begin + kSplitBlocks, count);
    item.o = o_parts + i * per_part;
    item.lse = lse_parts + i * params.group;
    run(params, item);
  }

  for (std::int64_t i = 0; i < heads * params.group; ++i) {
    const std::int64_t part = i / params.group * splits, g = i % params.group;
    const Partials partials{o_parts + part * per_part + g * view.head_dim, lse_parts + part * params.group + g,
                            per_part, params.group, static_cast<int>(splits)};
    merge(partials, view.head_dim, params.o + i * view.head_dim, params.lse != nullptr ? params.lse + i : nullptr);
  }
}

void prefill_listed(const Params& params, std::span<const std::int32_t> q_start, Workspace&) {
  const KvView& view = params.view;
  const auto run = HWY_DYNAMIC_DISPATCH(decode_item);
  for (int b = 0; b < view.batch; ++b) {
    const std::int64_t first = q_start[b], q_len = q_start[b + 1] - first;
#pragma omp parallel for schedule(dynamic, 1) if (q_len > 1)
    for (std::int64_t i = 0; i < q_len * view.kv_heads; ++i) {
      DecodeItem item{prefill_row(params, b, first, q_len, i / view.kv_heads), static_cast<int>(i % view.kv_heads)};
      item.end = blocks_of(params, item.row, item.kv_head).count;
      const std::int64_t head = item.row.index * params.q_heads + item.kv_head * params.group;
      item.o = params.o + head * view.head_dim;
      item.lse = params.lse != nullptr ? params.lse + head : nullptr;
      run(params, item);
    }
  }
}

std::string fast_targets() {
  std::string names;
  for (std::int64_t rest = HWY_TARGETS; rest != 0; rest &= rest - 1)
    names += (names.empty() ? "" : " ") + std::string(hwy::TargetName(rest & -rest));
  return names;
}

}  // namespace rarefy::attention
#endif
