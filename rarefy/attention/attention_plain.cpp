// Plain attention on the CPU, the oracle: loops in the order of the equation, float64.
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "rarefy/attention/attention_cpu.h"

namespace rarefy::attention {
namespace {

double value_at(const std::byte* at, DType dtype) {
  std::uint16_t bits;
  std::memcpy(&bits, at, sizeof bits);
  return dtype == DType::F16 ? to_float(Half{bits}) : to_float(BFloat16{bits});
}

// Position among the two kept of a group of the value `index` of four, or -1.
int kept_at(const std::byte* page, int head_dim, format24::MetadataPlace place, int index) {
  std::uint32_t word;
  std::memcpy(&word, page + format24::nonzero_bytes(head_dim) + place.word * 4, sizeof word);
  const std::uint32_t bits = word >> place.shift;
  if (static_cast<int>(bits & 3) == index) return 0;
  return static_cast<int>(bits >> 2 & 3) == index ? 1 : -1;
}

double key_at(const KvView& view, Page page, int token, int channel) {
  if (!page.sparse) return value_at(page.data + format24::dense_offset(token, channel), view.dtype);
  const int group = channel / 4;
  const int kept =
      kept_at(page.data, view.head_dim, format24::k_metadata_place(token, group, view.head_dim), channel % 4);
  if (kept < 0) return 0;
  return value_at(page.data + format24::k_nonzero_offset(token, group * 2 + kept, view.head_dim), view.dtype);
}

double value_of(const KvView& view, Page page, int token, int channel) {
  if (!page.sparse) return value_at(page.data + format24::dense_offset(token, channel), view.dtype);
  const int group = token / 4;
  const int kept = kept_at(page.data, view.head_dim, format24::v_metadata_place(channel, group), token % 4);
  if (kept < 0) return 0;
  return value_at(page.data + format24::v_nonzero_offset(group * 2 + kept, channel), view.dtype);
}

struct Token {
  Page k;
  Page v;
  int token;
};

std::vector<Token> tokens_of(const Params& params, const Row& row, int kv_head, std::int64_t begin, std::int64_t end) {
  const KvView& view = params.view;
  std::vector<Token> tokens;
  const BlockRange blocks = blocks_of(params, row, kv_head);
  for (std::int64_t i = begin; i < end; ++i) {
    const int count = tokens_before(blocks[i], row.keys);
    if (count == 0) continue;
    const BlockPages pages = pages_of(view, view.row(row.sequence, kv_head), blocks[i], row.window_start);
    for (int t = 0; t < count; ++t) tokens.push_back({pages.k, pages.v, t});
  }
  return tokens;
}

void attend(const Params& params, const Row& row, int q_head) {
  const std::int64_t blocks = blocks_of(params, row, q_head / params.group).count;
  const std::int64_t head = row.index * params.q_heads + q_head;
  attend_plain(params, row, q_head, 0, blocks, params.o + head * params.view.head_dim,
               params.lse != nullptr ? params.lse + head : nullptr);
}

}  // namespace

void attend_plain(const Params& params, const Row& row, int q_head, std::int64_t begin, std::int64_t end, float* o,
                  float* lse) {
  const KvView& view = params.view;
  const int head_dim = view.head_dim;
  const std::vector<Token> tokens = tokens_of(params, row, q_head / params.group, begin, end);
  const float* q = params.q + (row.index * params.q_heads + q_head) * head_dim;
  constexpr double kNone = -std::numeric_limits<double>::infinity();
  std::vector<double> p(tokens.size());
  double max = kNone;
  for (std::size_t t = 0; t < tokens.size(); ++t) {
    double sum = 0;
    for (int c = 0; c < head_dim; ++c) sum += q[c] * key_at(view, tokens[t].k, tokens[t].token, c);
    p[t] = sum * params.scale;
    max = std::max(max, p[t]);
  }
  double total = 0;
  for (double& x : p) total += x = max == kNone ? 0 : std::exp(x - max);
  for (int c = 0; c < head_dim; ++c) {
    double sum = 0;
    for (std::size_t t = 0; t < tokens.size(); ++t) sum += p[t] * value_of(view, tokens[t].v, tokens[t].token, c);
    o[c] = total == 0 ? 0.0f : static_cast<float>(sum / total);
  }
  if (lse != nullptr) *lse = static_cast<float>(total == 0 ? kNone : max + std::log(total));
}

void decode_plain(const Params& params) {
  for (int b = 0; b < params.view.batch; ++b)
    for (int h = 0; h < params.q_heads; ++h) attend(params, decode_row(params.view, b), h);
}

void prefill_plain(const Params& params, std::span<const std::int32_t> q_start) {
  for (int b = 0; b < params.view.batch; ++b) {
    const int first = q_start[b], q_len = q_start[b + 1] - first;
    for (int i = 0; i < q_len; ++i)
      for (int h = 0; h < params.q_heads; ++h) attend(params, prefill_row(params, b, first, q_len, i), h);
  }
}

}  // namespace rarefy::attention
