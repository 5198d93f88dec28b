// Attention over the decompressed values of a RandomCache, in float64 and in plain float32, and calls to compare with.
#pragma once
#include <gtest/gtest.h>

#include <cmath>

#include "tests/attention/random_cache.h"

namespace rarefy::attention {

struct Result {
  std::vector<double> o, lse;
};

/// One query of a test: which row, what it sees and which window rule holds.
struct Query {
  int sequence = 0;
  int row = 0;
  int keys = 0;
  int window_start = std::numeric_limits<int>::max();
};

/// o and lse of all rows in arithmetic of type T (double: the reference; float: what a plain version reaches).
template <typename T>
Result oracle(const RandomCache& cache, const std::vector<Query>& queries, const std::vector<float>& q, int group,
              float scale, const std::vector<std::vector<int>>* lists = nullptr) {
  const int head_dim = cache.spec().head_dim, kv_heads = cache.spec().kv_heads, q_heads = kv_heads * group;
  Result out;
  out.o.assign(queries.size() * q_heads * head_dim, 0);
  out.lse.assign(queries.size() * q_heads, -std::numeric_limits<double>::infinity());
  for (const Query& query : queries) {
    for (int h = 0; h < q_heads; ++h) {
      const std::size_t head = static_cast<std::size_t>(query.row * q_heads + h);
      std::vector<std::pair<const double*, const double*>> tokens;
      std::vector<int> blocks((query.keys + 63) / 64);
      std::iota(blocks.begin(), blocks.end(), 0);
      if (lists != nullptr) blocks = (*lists)[query.row * kv_heads + h / group];
      for (const int block : blocks) {
        const bool windowed = (block + 1) * 64 > query.window_start;
        for (int t = 0; t < 64 && block * 64 + t < query.keys; ++t)
          tokens.emplace_back(&cache.values(false, query.sequence, h / group, block, windowed)[t * head_dim],
                              &cache.values(true, query.sequence, h / group, block, windowed)[t * head_dim]);
      }
      if (tokens.empty()) continue;
      std::vector<T> p(tokens.size());
      T max = -std::numeric_limits<T>::infinity(), sum = 0;
      for (std::size_t t = 0; t < tokens.size(); ++t) {
        T s = 0;
        for (int c = 0; c < head_dim; ++c)
          s += static_cast<T>(q[head * head_dim + c]) * static_cast<T>(tokens[t].first[c]);
        p[t] = s * static_cast<T>(scale);
        max = std::max(max, p[t]);
      }
      for (T& x : p) sum += x = std::exp(x - max);
      for (int c = 0; c < head_dim; ++c) {
        T s = 0;
        for (std::size_t t = 0; t < tokens.size(); ++t) s += p[t] * static_cast<T>(tokens[t].second[c]);
        out.o[head * head_dim + c] = s / sum;
      }
      out.lse[head] = max + std::log(sum);
    }
  }
  return out;
}

inline double max_error(const std::vector<double>& a, const std::vector<double>& b) {
  double error = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (a[i] == b[i]) continue;  // equal infinities
    if (!(std::abs(a[i] - b[i]) <= error)) error = std::abs(a[i] - b[i]);
    if (std::isnan(error)) return std::numeric_limits<double>::infinity();
  }
  return error;
}

inline double max_abs(const std::vector<double>& a) {
  double most = 0;
  for (const double x : a)
    if (std::isfinite(x)) most = std::max(most, std::abs(x));
  return most;
}

/// FlashAttention's rule: at most twice the error of a plain float32 version, plus rounding noise of the output.
inline void expect_close(const Result& got, const Result& exact, const Result& plain) {
  constexpr double kNoise = 8 * 1.2e-7;  // rounding of the output, and exp2's 3e-7
  EXPECT_LE(max_error(got.o, exact.o), 2 * max_error(plain.o, exact.o) + kNoise * max_abs(exact.o));
  EXPECT_LE(max_error(got.lse, exact.lse), 2 * max_error(plain.lse, exact.lse) + kNoise * max_abs(exact.lse));
}

/// Both outputs start as NaN: a row that is not written shows.
class Call {
 public:
  Call(const RandomCache& cache, const std::vector<float>& q, int group, Options options)
      : cache_(cache), q_(q), group_(group), options_(options), o_(q.size(), std::nanf("")) {
    rows_ = static_cast<std::int64_t>(q.size()) / (cache.spec().kv_heads * group * cache.spec().head_dim);
    lse_.assign(static_cast<std::size_t>(rows_) * cache.spec().kv_heads * group, std::nanf(""));
  }

  Result decode(BlockList blocks = {}) {
    attention::decode(view(q_), cache_.view(), blocks, options_, view(o_), lse(), workspace_, stream_);
    return result();
  }
  Result prefill(std::span<const std::int32_t> q_start, BlockList blocks = {}) {
    attention::prefill(view(q_), q_start, cache_.view(), blocks, options_, view(o_), lse(), workspace_, stream_);
    return result();
  }

 private:
  TensorView view(std::vector<float>& x) {
    return make_view(x.data(), {rows_, cache_.spec().kv_heads * group_, cache_.spec().head_dim});
  }
  TensorView lse() { return make_view(lse_.data(), {rows_, cache_.spec().kv_heads * group_}); }
  Result result() const { return {{o_.begin(), o_.end()}, {lse_.begin(), lse_.end()}}; }

  const RandomCache& cache_;
  std::vector<float> q_;
  int group_;
  Options options_;
  std::vector<float> o_, lse_;
  std::int64_t rows_ = 0;
  Workspace workspace_;
  Stream stream_;
};

inline std::vector<float> random_q(const CacheSpec& spec, std::int64_t rows, int group, unsigned seed = 7,
                                   float magnitude = 1) {
  return random_floats(static_cast<std::size_t>(rows * spec.kv_heads * group * spec.head_dim), seed, magnitude);
}

inline std::vector<Query> decode_queries(const RandomCache& cache) {
  std::vector<Query> queries;
  for (int b = 0; b < static_cast<int>(cache.spec().lengths.size()); ++b)
    queries.push_back({b, b, cache.spec().lengths[b]});
  return queries;
}

/// Chunks of q_lens[b] queries at the ends of the sequences; local as in Options.
inline std::vector<Query> prefill_queries(const RandomCache& cache, const std::vector<int>& q_lens, int local,
                                          std::vector<std::int32_t>& q_start) {
  std::vector<Query> queries;
  q_start = {0};
  for (int b = 0; b < static_cast<int>(q_lens.size()); ++b) {
    const int c0 = cache.spec().lengths[b] - q_lens[b];
    for (int i = 0; i < q_lens[b]; ++i)
      queries.push_back({b, static_cast<int>(queries.size()), std::max(c0 + i + 1, 0), c0 + i / 128 * 128 - local});
    q_start.push_back(static_cast<std::int32_t>(queries.size()));
  }
  return queries;
}

}  // namespace rarefy::attention
